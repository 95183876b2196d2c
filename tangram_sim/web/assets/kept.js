// What was typed, chosen and dropped stays in this tab: a page that is loaded again shows it again.

const KEY = "tangram-form", LONGEST = 2 ** 20;  // characters; a tab's storage ends at five million or so

const values = read();
let place = "";

function read() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY)) || {};
  } catch {
    return {};
  }
}

/** Fields made from now on are those of this page: equal labels of two pages are two values. */
export function within(page) {
  place = page;
}

export const pageInMaking = () => place;

export const keyOf = (label) => `${place}/${label}`;

export const kept = (key) => values[key];

/** Keep a value under a key; `undefined` forgets it. What is too long to keep is asked for again. */
export function keep(key, value) {
  const long = JSON.stringify(value)?.length > LONGEST;
  if (value === undefined || long) delete values[key];
  else values[key] = value;
  try {
    sessionStorage.setItem(KEY, JSON.stringify(values));
  } catch {
    delete values[key];
  }
}

export function forget() {
  sessionStorage.removeItem(KEY);
}
