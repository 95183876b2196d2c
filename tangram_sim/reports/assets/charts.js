// Charts as SVG, from figures that are ready: nothing is computed here but where things are drawn.
// `draw(element, chart)` fills the element; charts redraw themselves when their width changes.

const NS = "http://www.w3.org/2000/svg";
const GAP = 4;

function node(name, attributes = {}, ...children) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function titled(element, text) {
  element.append(node("title", {}, text));
  return element;
}

function text(x, y, words, attributes = {}) {
  return node("text", { x, y, ...attributes }, words);
}

/** A figure with three digits and, where it is large, k, M, G, T. */
export function short(value) {
  if (!Number.isFinite(value)) return "";
  const size = Math.abs(value);
  for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= unit) return `${digits(value / (name === "k" ? 1e3 : unit))}${name}`;
  }
  return digits(value);
}

function digits(value) {
  const size = Math.abs(value);
  if (size >= 100) return value.toLocaleString("en-US", { maximumFractionDigits: 0 });
  return String(Number(value.toPrecision(3)));
}

/** Seconds in the unit that fits. */
export function seconds(value) {
  if (value === 0) return "0 s";
  if (Math.abs(value) >= 2 * 86400) return `${digits(value / 86400)} d`;
  if (Math.abs(value) >= 7200) return `${digits(value / 3600)} h`;
  if (Math.abs(value) >= 600) return `${digits(value / 60)} min`;
  if (Math.abs(value) >= 1) return `${digits(value)} s`;
  if (Math.abs(value) >= 1e-3) return `${digits(value * 1e3)} ms`;
  return `${digits(value * 1e6)} us`;
}

/** Round places between two ends, about `wanted` of them. */
function ticks(low, high, wanted) {
  const raw = (high - low) / Math.max(wanted, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw * 0.999) || raw;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) found.push(at);
  return found;
}

function widthOf(words, size = 12) {
  return words.length * size * 0.56;
}

function clipped(words, room, size = 12) {
  const most = Math.max(Math.floor(room / (size * 0.56)), 1);
  return words.length <= most ? words : `${words.slice(0, Math.max(most - 1, 1))}\u2026`;
}

function surface(element, height) {
  const width = Math.max(element.clientWidth || 640, 240);
  const svg = node("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", class: "chart" });
  return { svg, width, height };
}

function legend(names) {
  const made = document.createElement("div");
  made.className = "legend";
  names.forEach(([name, colour]) => {
    const entry = document.createElement("span");
    const key = document.createElement("i");
    key.className = colour;
    entry.append(key, name);
    made.append(entry);
  });
  return made;
}

// ---- points: throughput against cost, with intervals -------------------------------------------------

function points(element, chart) {
  const { svg, width, height } = surface(element, 340);
  const box = { left: 58, right: width - 16, top: 16, bottom: height - 42 };
  const xs = chart.points.map((one) => one.x);
  const ends = chart.points.flatMap((one) => [one.low ?? one.y, one.high ?? one.y]);
  const x = scale(0, Math.max(...xs) * 1.12 || 1, box.left, box.right);
  const y = scale(0, Math.max(...ends) * 1.06 || 1, box.bottom, box.top);
  axes(svg, box, x, y, chart);
  if (chart.line) {
    const path = [...chart.points].sort((a, b) => a.x - b.x)
      .map((one, at) => (at ? `H${x(one.x)}V${y(one.y)}` : `M${x(one.x)},${y(one.y)}`)).join("");
    svg.append(node("path", { d: path, class: "front" }));
  }
  const taken = [];
  chart.points.forEach((one, at) => {
    const group = node("g", { class: one.chosen ? "point chosen" : "point" });
    const place = [x(one.x), y(one.y)];
    if (one.low !== undefined && one.low !== one.high) {
      group.append(node("path", { class: "whisker", d: `M${place[0]},${y(one.low)}V${y(one.high)}` }));
    }
    group.append(node("circle", { cx: place[0], cy: place[1], r: one.chosen ? 7 : 5 }));
    label(group, one.name, place, box, taken);
    titled(group, [one.name, `${chart.x.title}: ${short(one.x)}`, `${chart.y.title}: ${short(one.y)}`
      + (one.low === undefined ? "" : ` (${short(one.low)} to ${short(one.high)})`), one.detail || ""]
      .filter(Boolean).join("\n"));
    if (chart.pick) pickable(group, one.name, () => chart.pick(at));
    svg.append(group);
  });
  element.replaceChildren(svg);
}

function label(group, name, [x, y], box, taken) {
  const words = clipped(name, (box.right - box.left) * 0.7, 11);
  const wide = widthOf(words, 11);
  const right = x + wide / 2 > box.right ? box.right - wide : Math.max(x - wide / 2, box.left);
  const free = (top) => top > box.top - 12 && top < box.bottom
    && !taken.some(([l, t]) => Math.abs(t - top) < 13 && l[0] < right + wide + 4 && l[1] > right - 4);
  const heights = [y - 18, y + 12, y - 32, y + 26, y - 46, y + 40, y - 60, y + 54];
  const top = heights.find(free);
  if (top === undefined) return;  // its words stand in the table and appear on hover
  taken.push([[right, right + wide], top]);
  group.append(text(right, top + 10, words, { class: "small" }));
}

function pickable(group, name, act) {
  group.setAttribute("tabindex", "0");
  group.setAttribute("role", "button");
  group.setAttribute("aria-label", `show the plan of ${name}`);
  group.addEventListener("click", act);
  group.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      act();
    }
  });
}

function scale(low, high, from, to) {
  const made = (value) => from + ((value - low) / (high - low || 1)) * (to - from);
  made.low = low;
  made.high = high;
  return made;
}

function logarithmic(low, high, box) {
  const linear = scale(Math.log10(low), Math.log10(high), box.left, box.right);
  const made = (value) => linear(Math.log10(value));
  made.ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    made.ticks.push(...[1, 2, 5].map((one) => one * 10 ** power).filter((one) => one >= low && one <= high));
  }
  return made;
}

function axes(svg, box, x, y, chart) {
  for (const at of ticks(y.low, y.high, 5)) {
    svg.append(node("path", { class: "grid", d: `M${box.left},${y(at)}H${box.right}` }));
    svg.append(text(box.left - 6, y(at) + 4, short(at), { class: "small end" }));
  }
  for (const at of x.ticks || ticks(x.low, x.high, Math.max((box.right - box.left) / 90, 2))) {
    svg.append(text(x(at), box.bottom + 16, short(at), { class: "small middle" }));
    svg.append(node("path", { class: "grid", d: `M${x(at)},${box.bottom}V${box.bottom + 4}` }));
  }
  svg.append(node("path", { class: "axis", d: `M${box.left},${box.bottom}H${box.right}` }));
  svg.append(text(box.right, box.bottom + 34, chart.x.title, { class: "small end soft" }));
  svg.append(text(4, box.top - 4, chart.y.title, { class: "small soft" }));
}

// ---- bars: one row per name, parts side by side, a mark where something ends --------------------------

function bars(element, chart) {
  const kinds = [...new Set(chart.bars.flatMap((bar) => bar.parts.map((part) => part.name)))];
  const { svg, width, height } = surface(element, 36 + 40 * chart.bars.length);
  const total = (bar) => bar.parts.reduce((sum, part) => sum + part.value, 0);
  const most = Math.max(...chart.bars.map((bar) => Math.max(total(bar), bar.mark || 0)), 1e-300);
  const x = scale(0, most * 1.02, 2, width - 10);
  chart.bars.forEach((bar, row) => {
    const top = row * 40 + 18;
    const said = bar.said || short(total(bar));
    svg.append(text(2, top - 4, clipped(bar.name, width - widthOf(said) - 16)));
    svg.append(text(width - 10, top - 4, said, { class: "end" }));
    let at = 0;
    const group = node("g", { class: chart.pick ? "point" : "bar" });
    svg.append(group);
    if (chart.pick) pickable(group, bar.name, () => chart.pick(row));
    for (const part of bar.parts) {
      const colour = `fill${kinds.indexOf(part.name) % 8}`;
      const size = Math.max(x(at + part.value) - x(at), 0);
      group.append(titled(node("rect", { x: x(at), y: top, width: size, height: 14, class: colour }),
        `${bar.name}: ${part.name} ${short(part.value)} ${chart.unit}`));
      at += part.value;
    }
    if (bar.mark) {
      const path = node("path", { class: "mark", d: `M${x(bar.mark)},${top - 3}v20` });
      svg.append(titled(path, `${chart.mark}: ${short(bar.mark)} ${chart.unit}`));
    }
  });
  for (const at of ticks(0, most, Math.max(width / 110, 2))) {
    if (x(at) < width - 24) svg.append(text(x(at), height - 4, short(at), { class: "small soft" }));
  }
  const named = [[`in ${chart.unit}:`, "nokey"]].concat(kinds.map((name, at) => [name, `fill${at % 8}`]));
  if (chart.mark) named.push([chart.mark, "markkey"]);
  element.replaceChildren(svg, legend(named));
}

// ---- swings: how far one assumption alone moves a figure ----------------------------------------------

function swings(element, chart) {
  const { svg, width, height } = surface(element, 40 + 40 * chart.rows.length);
  const ends = chart.rows.flatMap((row) => [row.at_low, row.at_high, chart.base]);
  const low = Math.min(...ends), high = Math.max(...ends), room = (high - low || 1) * 0.03;
  const x = scale(low - room, high + room, 2, width - 10);
  chart.rows.forEach((row, number) => {
    const top = number * 40 + 18;
    svg.append(text(2, top - 4, clipped(row.name, width - 16)));
    for (const [value, end, colour] of [[row.at_low, row.low, "low"], [row.at_high, row.high, "high"]]) {
      const from = Math.min(x(value), x(chart.base));
      svg.append(titled(node("rect", { x: from, y: top, height: 14, class: colour,
        width: Math.max(Math.abs(x(value) - x(chart.base)), 1) }),
      `${row.name} at ${end}: ${short(value)} ${chart.unit}`));
    }
    svg.append(node("path", { class: "mark", d: `M${x(chart.base)},${top - 2}v18` }));
  });
  for (const at of ticks(low, high, Math.max(width / 110, 2))) {
    svg.append(text(x(at), height - 6, short(at), { class: "small middle" }));
  }
  element.replaceChildren(svg, legend([
    ["assumption at its low end", "low"], ["at its high end", "high"], [chart.unit, "markkey"],
  ]));
}

// ---- steps: figures that hold until they change --------------------------------------------------------

const hue = (series, number) => (series.colour ?? number) % 8;

function steps(element, chart) {
  const { svg, width, height } = surface(element, 260);
  const box = { left: 58, right: width - 12, top: 16, bottom: height - 38 };
  const all = chart.series.flatMap((one) => one.points);
  const tops = [...all.map(([, value]) => value), ...chart.series.map((one) => one.limit || 0)];
  const least = Math.min(...all.map(([at]) => at));
  const x = chart.x.log ? logarithmic(least, Math.max(...all.map(([at]) => at)), box) : scale(0, chart.until || Math.max(...all.map(([at]) => at)) || 1, box.left, box.right);
  const y = scale(0, Math.max(...tops) * 1.04 || 1, box.bottom, box.top);
  axes(svg, box, x, y, chart);
  chart.series.forEach((one, number) => {
    const path = one.points.map(([at, value], place) =>
      (place ? `H${x(at).toFixed(1)}V${y(value).toFixed(1)}` : `M${x(at)},${y(value)}`)).join("");
    svg.append(titled(node("path", { d: `${path}H${box.right}`, class: `line line${hue(one, number)}` }), one.name));
    if (one.limit) {
      svg.append(titled(node("path", { d: `M${box.left},${y(one.limit)}H${box.right}`,
        class: `limit line${hue(one, number)}` }), `${one.name}: ${short(one.limit)} ${chart.y.title}`));
    }
  });
  const named = chart.series.map((one, at) => [one.name, `fill${hue(one, at)}`]);
  element.replaceChildren(svg, legend(named));
}

// ---- grid: a heat map -----------------------------------------------------------------------------------

function grid(element, chart) {
  const rows = chart.values.length, columns = chart.values[0].length;
  const room = Math.max(element.clientWidth || 640, 240) - 64;
  const size = Math.max(Math.min(room / columns, 64), 4), tall = Math.max(Math.min(28, 640 / rows), 4);
  const { svg } = surface(element, 26 + rows * tall);
  const all = chart.values.flat(), low = Math.min(...all), high = Math.max(...all);
  chart.values.forEach((row, at) => {
    if (tall >= 12) svg.append(text(56, 22 + at * tall + tall / 2 + 4, `${chart.row} ${at}`, { class: "small end" }));
    row.forEach((value, column) => {
      const heat = high > low ? (value - low) / (high - low) : 0;
      const cell = node("rect", { x: 60 + column * size, y: 22 + at * tall, width: size - 1, height: tall - 1,
        class: "cell", "fill-opacity": (0.08 + 0.92 * heat).toFixed(3) });
      svg.append(titled(cell, `${chart.row} ${at}, ${chart.column} ${column}: ${value.toFixed(3)}`));
      if (size >= 34 && tall >= 14) {
        svg.append(text(60 + column * size + size / 2, 22 + at * tall + tall / 2 + 4, value.toFixed(2),
          { class: "small middle quiet" }));
      }
    });
  });
  for (let column = 0; column < columns; column += Math.ceil(52 / size)) {
    svg.append(text(60 + column * size, 14, `${chart.column} ${column}`, { class: "small" }));
  }
  element.replaceChildren(svg);
}

// ---- timeline: what every stream does when; wheel, drag, buttons or keys zoom ---------------------------

function timeline(element, chart) {
  const view = element.view || { from: 0, to: chart.until };
  element.view = view;
  const tracks = chart.tracks.length, tall = tracks > 24 ? 12 : 20;
  const { svg, width, height } = surface(element, tracks * (tall + GAP) + 30);
  const left = Math.min(Math.max(...chart.tracks.map((name) => widthOf(name, 11))) + 10, width * 0.3);
  const x = scale(view.from, view.to, left, width - 4);
  chart.tracks.forEach((name, row) => {
    svg.append(text(left - 6, row * (tall + GAP) + tall - 5, clipped(name, left - 8, 11), { class: "small end" }));
    svg.append(node("rect", { x: left, y: row * (tall + GAP), width: width - 4 - left, height: tall, class: "lane" }));
  });
  const last = new Map();
  for (const [track, kind, start, end, said] of chart.ops) {
    if (end <= view.from || start >= view.to) continue;
    const from = Math.max(x(start), left), to = Math.min(x(end), width - 4);
    const before = last.get(track);
    if (to - from < 0.7 && before && before.kind === kind && from - before.to < 1) {
      before.to = to;
      before.mark.setAttribute("width", Math.max(to - before.from, 0.5));
      continue;
    }
    const mark = titled(node("rect", { x: from, y: track * (tall + GAP), width: Math.max(to - from, 0.5),
      height: tall, class: `op ${chart.colours[kind]}` }),
    `${chart.tracks[track]}: ${chart.kinds[kind]}${said ? ` ${said}` : ""}, ${seconds(end - start)} from ${seconds(start)}`);
    svg.append(mark);
    last.set(track, { kind, from, to, mark });
  }
  for (const at of ticks(view.from, view.to, Math.max((width - left) / 90, 2))) {
    svg.append(text(x(at), height - 6, seconds(at), { class: "small middle soft" }));
  }
  const kept = element.querySelector("svg");
  if (kept && element.contains(document.activeElement)) kept.replaceChildren(...svg.childNodes);
  else element.replaceChildren(...zoomed(element, chart, svg, left), legend(
    chart.kinds.map((name, at) => [name, chart.colours[at]])));
  if (kept && kept.isConnected) kept.setAttribute("height", height);
}

function zoomed(element, chart, svg, left) {
  const view = element.view;
  const show = (from, to) => {
    const span = Math.min(Math.max(to - from, chart.until * 1e-4), chart.until);
    view.from = Math.min(Math.max(from, 0), chart.until - span);
    view.to = view.from + span;
    timeline(element, chart);
  };
  const by = (factor, share = 0.5) => {
    const at = view.from + share * (view.to - view.from), span = (view.to - view.from) * factor;
    show(at - share * span, at + (1 - share) * span);
  };
  const along = (share) => {
    const step = (view.to - view.from) * share;
    show(view.from + step, view.to + step);
  };
  svg.setAttribute("tabindex", "0");
  svg.setAttribute("aria-label", "timeline: plus and minus zoom, arrows move, 0 shows all");
  svg.addEventListener("keydown", (event) => {
    const act = { "+": () => by(0.5), "=": () => by(0.5), "-": () => by(2), 0: () => show(0, chart.until),
      ArrowLeft: () => along(-0.25), ArrowRight: () => along(0.25) }[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  });
  const share = (event) => (event.clientX - svg.getBoundingClientRect().left - left) / (svg.clientWidth - left);
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey && document.activeElement !== svg) return;  // the page scrolls
    event.preventDefault();
    by(event.deltaY > 0 ? 1.25 : 0.8, share(event));
  }, { passive: false });
  let held = null;
  svg.addEventListener("pointerdown", (event) => {
    held = { at: event.clientX, from: view.from, to: view.to };
    svg.focus({ preventScroll: true });
  });
  svg.addEventListener("pointermove", (event) => {
    if (!held || !event.buttons) return;
    const moved = ((event.clientX - held.at) / (svg.clientWidth - left)) * (held.to - held.from);
    show(held.from - moved, held.to - moved);
  });
  const bar = document.createElement("div");
  bar.className = "zoom";
  for (const [words, said, act] of [["+", "zoom in", () => by(0.5)], ["\u2212", "zoom out", () => by(2)],
    ["\u25c2", "earlier", () => along(-0.4)], ["\u25b8", "later", () => along(0.4)],
    ["all", "show the whole step", () => show(0, chart.until)]]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = words;
    button.title = said;
    button.setAttribute("aria-label", said);
    button.addEventListener("click", () => {
      svg.focus({ preventScroll: true });
      act();
    });
    bar.append(button);
  }
  return [bar, svg];
}

// ---------------------------------------------------------------------------------------------------------

const DRAWN = { points, bars, swings, steps, grid, timeline };

/** Draw a chart into an element, now and whenever the element's width changes. */
export function draw(element, chart) {
  element.view = undefined;
  element.replaceChildren();
  const again = () => DRAWN[chart.kind](element, chart);
  again();
  let width = element.clientWidth;
  if (element.watcher) element.watcher.disconnect();
  element.watcher = new ResizeObserver(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    element.replaceChildren();
    again();
  });
  element.watcher.observe(element);
}
