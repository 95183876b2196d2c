// Fleets compared by what they serve: all day, or by day beside training by night.

import { draw, short } from "./charts.js";
import { command, count, h, noted, percent, section, table } from "./dom.js";

const money = (usd) => (usd === null || usd === undefined ? "-" : `$${short(usd)}`);

/** What `--serve` answered: `found.candidates` or `found.front`, of services or, with a share, of days. */
export function showServed(content, answer, asked, takeAlong) {
  const found = answer.document, rows = found.candidates || found.front, day = "hours" in found;
  const chart = h("div"), able = rows.filter((row) => !row.reason);
  const best = day ? found.cheapest_trained : found.cheapest_tokens ?? cheapest(able);
  const unit = day ? "tokens trained a day" : "requests a second that are good";
  const worth = (row) => (day ? row.shared.trained_tokens_per_day : row.good_rps);
  content.replaceChildren(
    h("h1", {}, day ? `Serve ${found.hours} hours a day, train the rest` : "What the fleets serve"),
    h("p", { class: "lead" }, lead(able, best, day)),
    section(day ? "Trained beside serving" : "Served within the objective", chart),
    section("In figures", day ? days(rows, best) : services(rows, best)), takeAlong,
    command(answer.command, Object.keys(asked.files)), noted(found.notes || []));
  if (able.length) {
    draw(chart, { kind: "bars", unit, bars: able.map((row) => ({ name: row.name, parts: [{ name: unit, value: worth(row) }] })) });
  }
}

function cheapest(able) {
  const priced = able.filter((row) => row.usd_per_million_tokens !== null);
  return priced.length ? priced.reduce((a, b) => (a.usd_per_million_tokens <= b.usd_per_million_tokens ? a : b)).name : null;
}

function lead(able, best, day) {
  if (!able.length) return "No fleet here serves what is asked.";
  if (!best) return "Which is cheapest cannot be said without prices of all.";
  const row = able.find((one) => one.name === best);
  const cost = row && (day ? row.shared.usd_per_million_trained : row.usd_per_million_tokens);
  return `${["fleet", "nothing"].includes(best) ? "The fleet as it stands" : best} ${day ? "trains" : "serves"} a token for the least money` + (cost ? `: ${money(cost)} a million.` : ".");
}

const unable = (row, width) => ({ cells: [row.name, row.reason, ...Array(width - 2).fill("")] });

const days = (rows, best) => table([["fleet"], "trained a day", "more than apart", "served a second", "good", "USD a month",
  "USD a million trained"], rows.map((row) => (row.reason ? unable(row, 7) : { chosen: row.name === best, cells: [row.name,
  count(row.shared.trained_tokens_per_day), row.gain === null ? "-" : percent(row.gain), short(row.served_rps), percent(row.good_share),
  money(row.shared.usd_per_month), money(row.shared.usd_per_million_trained)] })));

const services = (rows, best) => table([["fleet"], "good requests a second", "tokens a second", "USD an hour", "USD a million tokens"],
  rows.map((row) => (row.reason ? unable(row, 5) : { chosen: row.name === best, cells: [row.name, short(row.good_rps),
    count(row.good_output_tok_s), money(row.usd_per_hour), money(row.usd_per_million_tokens)] })));
