// The rows: columns of the data, unfolded only where they are one value for all.
const DATA = JSON.parse(document.getElementById("data").textContent);
const TEXTS = Object.keys(DATA.texts);
const NUMBERS = Object.keys(DATA.columns).filter((name) => !TEXTS.includes(name));
const GEOMETRY = ["file", "platform", "wire", "ranks", "scope", "ctas", "threads", "contexts"];
const HIGHER = ["bandwidth_GBps", "rate_Mops", "overlap_percent"];
const CENTRAL = ["median_us", "bandwidth_GBps", "rate_Mops"];

// What an object says of a name that comes from outside.
function known(object, name) { return object !== undefined && Object.hasOwn(object, name) ? object[name] : undefined; }

// A field of row i: text, number, or null.
function value(i, name) {
  const column = DATA.columns[name];
  if (column === undefined) return null;
  const raw = Array.isArray(column) ? column[i] : column.all;
  return TEXTS.includes(name) ? DATA.texts[name][raw] : raw;
}

// The 95 % interval of a metric of row i, or null. Bandwidth and rate have that of the median time.
function interval(i, metric) {
  const low = value(i, "median_low_us"), high = value(i, "median_high_us"), median = value(i, "median_us");
  if (!low || !high || !median || !CENTRAL.includes(metric)) return null;
  if (metric === "median_us") return [low, high];
  const v = value(i, metric);
  return v === null ? null : [v * median / high, v * median / low];
}

// The values of a field among rows, in order: numbers ascending, texts as they come.
function distinct(rows, name) {
  const found = [...new Set(rows.map((i) => value(i, name)))].filter((v) => v !== null);
  return typeof found[0] === "number" ? found.sort((a, b) => a - b) : found;
}

// At most that many of the values, the first and the last among them.
function some(values, most) {
  if (values.length <= most) return values;
  return [...Array(most).keys()].map((k) => values[Math.round((k * (values.length - 1)) / (most - 1))]);
}

function size(n) {
  for (const [unit, shift] of [["G", 30], ["M", 20], ["K", 10]]) {
    if (n && n % 2 ** shift === 0) return n / 2 ** shift + unit;
  }
  return String(n);
}

// Four significant digits, no exponent where a person can read it.
function figure(v) {
  if (v === null || v === undefined) return "-";
  if (v === 0) return "0";
  const abs = Math.abs(v);
  if (abs >= 1e6 || abs < 1e-4) return v.toExponential(2);
  return abs >= 1000 ? v.toFixed(0) : String(Number(v.toPrecision(4)));
}

function unit(metric) { return known(DATA.units, metric) || metric; }

function show(name, v) {
  if (v === null) return "";
  if (name === "bytes") return size(v);
  return typeof v === "number" ? figure(v) : String(v);
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, v] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), v);
    else if (v !== false && v !== null) made.setAttribute(key, v === true ? "" : v);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}
