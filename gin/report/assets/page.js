// The page: what was found in words, then for each test and operation its curves, ratios, distribution and table.
const METRICS = ["median_us", "min_us", "mean_us", "p90_us", "p99_us", "p999_us", "max_us", "bandwidth_GBps", "rate_Mops", "overlap_percent"]
  .filter((name) => NUMBERS.includes(name));
const PARALLEL = ["ctas", "threads", "contexts", "ranks"];
const MOST = 40; // columns of a heat map, and places whose distribution can be chosen
const ALL = [...Array(DATA.count).keys()];

function select(label, options, chosen, changed, named = String) {
  const made = element("select", { onchange: (event) => changed(options[event.target.selectedIndex]) },
    ...options.map((option) => element("option", { selected: option === chosen }, named(option))));
  return element("label", {}, label, made);
}

function seriesOf(rows, several) {
  const groups = new Map();
  for (const i of rows) {
    const key = [value(i, "file"), value(i, "backend"), value(i, "route")];
    const name = (several ? key : key.slice(1)).join(" ");
    if (!groups.has(name)) groups.set(name, { name, rows: [], style: styleOf(i, several) });
    groups.get(name).rows.push(i);
  }
  return [...groups.values()];
}

function styleOf(i, several) {
  const place = (name) => DATA.texts[name].indexOf(value(i, name));
  const route = place("route");
  return { colour: place("backend"), dash: route, marker: several ? place("file") : route, hollow: route % 2 === 1 };
}

// The ratio of rows a and b, and whether its interval leaves 1 out.
function ratio(a, b, metric) {
  const one = value(a, metric), other = value(b, metric);
  if (!one || !other || value(a, "wrong") || value(b, "wrong")) return null;
  const found = { value: one / other, low: null, high: null };
  const p = interval(a, metric), q = interval(b, metric);
  if (p && q) {
    found.low = found.value * Math.exp(-Math.hypot(Math.log(one / p[0]), Math.log(q[1] / other)));
    found.high = found.value * Math.exp(Math.hypot(Math.log(p[1] / one), Math.log(other / q[0])));
  }
  return found;
}

class Section {
  constructor(test, op, rows, taken) {
    Object.assign(this, { test, op, rows, hidden: new Set() });
    this.id = `${test}-${op}`.replace(/[^\w-]/g, "_");
    while (taken.has(this.id)) this.id += "_";
    taken.add(this.id);
    this.about = known(DATA.tests, test);
    this.axes = ["bytes", ...PARALLEL].filter((name) => distinct(rows, name).length > 1);
    const parallel = this.axes.find((name) => PARALLEL.includes(name));
    this.x = test === "rate" && parallel ? parallel : this.axes[0] || "bytes";
    const main = this.about ? this.about.main : "median_us";
    this.metrics = METRICS.filter((name) => rows.some((i) => value(i, name) !== null));
    this.metric = this.metrics.includes(main) ? main : this.metrics[0];
    this.varying = [...GEOMETRY.slice(1), "bytes"].filter((name) => distinct(rows, name).length > 1);
    this.fixed = Object.fromEntries(this.varying.map((name) => [name, value(rows[0], name)]));
    this.base = null;
    this.at = null;
  }

  build() {
    const about = this.about && known(this.about.operations, this.op);
    this.controls = element("div", { class: "controls" });
    this.legend = element("ul", { class: "legend", "aria-label": "Curves that are shown" });
    this.curve = element("div", { class: "chart" });
    this.heat = element("div", { class: "scroll heat" });
    this.heatControls = element("div", { class: "controls" });
    this.spread = element("div", { class: "chart" });
    this.spreadControls = element("div", { class: "controls" });
    const wrong = this.rows.filter((i) => value(i, "wrong")).length;
    const made = element("section", { "aria-labelledby": `${this.id}-head` },
      element("h2", { id: `${this.id}-head` }, `${this.test}: ${this.op}`),
      about ? element("p", { class: "soft" }, about[0].toUpperCase() + about.slice(1) + ".") : null,
      wrong ? element("p", { class: "warning" }, `Wrong data in ${wrong} rows; they are not drawn.`) : null,
      this.controls, this.legend, this.curve,
      element("h3", {}, "Ratios"), this.heatControls, this.heat,
      element("h3", {}, "Distribution"), this.spreadControls, this.spread,
      tableOf("Table", this.rows, `${this.test}-${this.op}.csv`.replace(/[^\w.-]/g, "_")));
    return made;
  }

  chosen() {
    return this.rows.filter((i) => !value(i, "wrong") &&
      this.varying.every((name) => name === this.x || value(i, name) === this.fixed[name]));
  }

  // Draws everything that depends on what is chosen.
  draw() {
    this.series = seriesOf(this.chosen(), distinct(this.rows, "file").length > 1);
    for (const s of this.series) s.rows.sort((a, b) => value(a, this.x) - value(b, this.x));
    this.places = distinct(this.series.flatMap((s) => s.rows), this.x);
    if (!this.series.some((s) => s.name === this.base)) this.base = this.series.length ? this.series[0].name : null;
    this.shown = some(this.places, MOST);
    if (!this.shown.includes(this.at)) this.at = this.shown[0] ?? null;
    this.drawControls();
    this.drawLegend();
    this.drawCurve();
    this.drawHeat();
    this.drawSpread();
  }

  drawControls() {
    const parts = [];
    const again = () => { this.draw(); };
    if (this.axes.length > 1) parts.push(select("against", this.axes, this.x, (v) => { this.x = v; again(); }));
    parts.push(select("figure", this.metrics, this.metric, (v) => { this.metric = v; again(); }, unit));
    for (const name of this.varying.filter((other) => other !== this.x)) {
      parts.push(select(name, distinct(this.rows, name), this.fixed[name], (v) => { this.fixed[name] = v; again(); }, (v) => show(name, v)));
    }
    keepFocus(this.controls, parts);
  }

  drawLegend() {
    keepFocus(this.legend, this.series.map((s) => {
      const off = this.hidden.has(s.name);
      const flip = () => { if (off) this.hidden.delete(s.name); else this.hidden.add(s.name); this.drawLegend(); this.drawCurve(); this.drawSpread(); };
      return element("li", {}, element("button", { type: "button", "aria-pressed": String(!off), onclick: flip }, swatch(s.style), s.name));
    }));
  }

  visible() { return this.series.filter((s) => !this.hidden.has(s.name)); }

  drawCurve() {
    const series = this.visible().map((s) => ({
      name: s.name, style: s.style,
      points: s.rows.filter((i) => value(i, this.metric) !== null).map((i) => {
        const range = interval(i, this.metric);
        const sure = range ? `\n95 %: ${figure(range[0])} to ${figure(range[1])}` : "";
        return { x: value(i, this.x), y: value(i, this.metric), low: range && range[0], high: range && range[1],
          told: `${s.name}\n${this.x} ${show(this.x, value(i, this.x))}: ${figure(value(i, this.metric))} ${unit(this.metric)}${sure}` };
      }),
    }));
    drawChart(this.curve, {
      label: `${this.test} ${this.op}: ${unit(this.metric)} against ${this.x}, ${series.length} curves`,
      x: { name: this.x, log: true, values: this.places, format: (v) => show(this.x, v) },
      y: { name: unit(this.metric), log: this.metric !== "overlap_percent" }, series,
    });
  }

  drawHeat() {
    keepFocus(this.heatControls, [select("divided by", this.series.map((s) => s.name), this.base, (v) => { this.base = v; this.drawHeat(); })]);
    const base = this.series.find((s) => s.name === this.base);
    this.heat.replaceChildren();
    if (!base || this.series.length < 2) { this.heat.append(element("p", { class: "soft" }, "There is nothing to compare with.")); return; }
    const at = (s, x) => s.rows.find((i) => value(i, this.x) === x);
    const head = element("tr", {}, element("th", { scope: "col", class: "text" }, this.x),
      ...this.shown.map((x) => element("th", { scope: "col" }, show(this.x, x))));
    const lines = this.series.filter((s) => s !== base).map((s) => element("tr", {}, element("th", { scope: "row", class: "text" }, s.name),
      ...this.shown.map((x) => this.cell(at(s, x), at(base, x)))));
    this.heat.tabIndex = 0;
    this.heat.setAttribute("role", "region");
    this.heat.setAttribute("aria-label", "Ratios");
    const few = this.shown.length < this.places.length ? `${this.shown.length} of ${this.places.length} places. ` : "";
    this.heat.append(element("table", {}, element("thead", {}, head), element("tbody", {}, ...lines)),
      element("p", { class: "soft" }, `${few}${unit(this.metric)} divided by that of ${this.base}. Blue: better, orange: worse; bold: the 95 % intervals of both, combined as if they were measured apart, leave 1 out. gin compare pairs what took turns, and is surer.`));
  }

  cell(a, b) {
    const found = a === undefined || b === undefined ? null : ratio(a, b, this.metric);
    if (!found) return element("td", {}, "-");
    const better = (found.value > 1) === HIGHER.includes(this.metric);
    const share = Math.min(45, Math.round(Math.abs(Math.log2(found.value)) * 22));
    const sure = found.low !== null && (found.low > 1 || found.high < 1);
    const range = found.low === null ? "" : `95 %: ${figure(found.low)} to ${figure(found.high)}`;
    return element("td", { class: sure ? "sure" : null, title: range,
      style: `background: color-mix(in srgb, var(--s${better ? 0 : 1}) ${share}%, var(--card))` }, figure(found.value));
  }

  // How the samples of one place lie: time against the share of samples that take no longer, its tail drawn out.
  drawSpread() {
    keepFocus(this.spreadControls, [select(this.x, this.shown, this.at, (v) => { this.at = v; this.drawSpread(); }, (v) => show(this.x, v))]);
    const nines = (percent) => -Math.log10(1 - percent / 100);
    const series = this.visible().map((s) => {
      const i = s.rows.find((row) => value(row, this.x) === this.at);
      return { name: s.name, style: s.style, points: i === undefined ? [] : levels(i).map(([percent, time]) => ({
        x: nines(percent), y: time, told: `${s.name}\n${Number(percent.toPrecision(6))} % take at most ${figure(time)} us` })) };
    });
    const ticks = [0, 50, 90, 99, 99.9, 99.99];
    drawChart(this.spread, {
      label: `${this.test} ${this.op}: distribution of the samples at ${this.x} ${show(this.x, this.at)}`, steps: true,
      x: { name: "% of the samples take at most", log: false, values: ticks.map(nines), format: (v) => String(ticks.find((t) => nines(t) === v)) },
      y: { name: "us", log: true }, series,
    });
  }
}

// [percent, time] of row i: its percentiles, and the least and the largest of its samples.
function levels(i) {
  const found = [[0, value(i, "min_us")], [50, value(i, "median_us")], [90, value(i, "p90_us")], [99, value(i, "p99_us")]];
  const samples = value(i, "samples") || value(i, "iterations") || 100;
  found.push([100 * (1 - 1 / Math.max(samples, 2)), value(i, "max_us")]);
  (DATA.quantiles[i] || []).forEach((time, k) => found.push([DATA.levels[k], time]));
  const last = found[4][0];
  return found.filter(([percent]) => percent <= last).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
}

// Puts children in place without taking the focus from the control that was used.
function keepFocus(place, children) {
  const all = "select, button";
  const index = [...place.querySelectorAll(all)].indexOf(document.activeElement);
  place.replaceChildren(...children);
  if (index >= 0) place.querySelectorAll(all)[index]?.focus();
}

function header() {
  const emulated = DATA.files.filter((file) => file.emulated);
  document.getElementById("top").append(element("h1", {}, DATA.title),
    element("p", { class: "soft" }, `${DATA.count} rows of ${DATA.files.map((file) => file.name).join(", ")}`),
    emulated.length ? element("p", { class: "warning" }, `Emulation: the timings of ${emulated.map((f) => f.name).join(", ")} are not hardware timings.`) : "",
    ...DATA.warnings.filter((text) => !text.startsWith("EMULATION: ")).map((text) => element("p", { class: "warning" }, text)));
}

// What is best for what, one line each.
function summary() {
  const several = DATA.files.length > 1;
  const heads = { ...(several ? { file: "file" } : {}), what: "test", bytes: "bytes", best: "best", level: "level with it (within 2 %, or not told apart)", next: "then", doubt: "in doubt" };
  const names = Object.keys(heads);
  return element("section", {}, element("h2", { id: "best" }, "What is best for what"),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What is best for what" }, element("table", { class: "summary" },
      element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col", class: "text" }, heads[name])))),
      element("tbody", {}, ...DATA.findings.map((line) => element("tr", {}, ...names.map((name) => element("td", { class: "text wide" }, line[name]))))))),
    element("p", { class: "soft" }, "A line for each range of sizes with the same in front. The best figure and the others, as multiples of it at the same size: the least to the greatest; in brackets as far as their 95 % intervals reach."),
    element("p", { class: "soft" }, Object.entries(DATA.routes).map(([name, about]) => `${name}: ${about}`).join("; ")));
}

function provenance() {
  const lines = (facts, path = "") => Object.entries(facts).flatMap(([name, v]) =>
    v !== null && typeof v === "object" && !Array.isArray(v) ? lines(v, `${path}${name} `)
      : [[path + name, Array.isArray(v) ? v.map((x) => (typeof x === "object" ? Object.values(x).join(" ") : x)).join(", ") : String(v)]]);
  return element("section", {}, element("h2", { id: "provenance" }, "Where the numbers come from"), ...DATA.files.map((file) => {
    const facts = { command: file.command.join(" "), written_by: file.tool, rows: file.rows, complete: file.complete, wrong: file.wrong, ...file.environment, ...file.remarks };
    return element("details", { open: DATA.files.length === 1 }, element("summary", {}, file.name),
      element("div", { class: "scroll" }, element("table", {}, element("tbody", {}, ...lines(facts).map(([name, text]) =>
        element("tr", {}, element("th", { scope: "row", class: "text" }, name), element("td", { class: "text wide" }, text)))))));
  }));
}

function start() {
  header();
  const main = document.getElementById("main");
  const groups = new Map();
  for (const i of ALL) {
    const key = JSON.stringify([value(i, "test"), value(i, "op")]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(i);
  }
  const taken = new Set(["main", "top", "foot", "live", "data", "best", "provenance"]);
  const sections = [...groups].map(([key, rows]) => new Section(...JSON.parse(key), rows, taken));
  main.append(element("nav", { "aria-label": "Sections" }, element("ul", {},
    ...sections.map((s) => element("li", {}, element("a", { href: `#${s.id}-head` }, `${s.test}: ${s.op}`))),
    element("li", {}, element("a", { href: "#provenance" }, "Where the numbers come from")))));
  if (DATA.findings.length) {
    main.append(summary());
  }
  if (!DATA.count) main.append(element("p", { class: "warning" }, "The files hold no rows."));
  main.append(element("p", {}, csvButton("Save all rows as CSV", "results.csv", () => ALL)));
  // What is far down is drawn when it comes near, or is printed.
  const waiting = new Map();
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) drawNow(entry.target);
  }, { rootMargin: "600px" });
  const drawNow = (place) => { near.unobserve(place); waiting.get(place)?.draw(); waiting.delete(place); };
  for (const section of sections) {
    const place = section.build();
    main.append(place);
    waiting.set(place, section);
    near.observe(place);
  }
  main.append(provenance());
  for (const place of [...waiting.keys()].slice(0, 1)) drawNow(place);
  document.getElementById("foot").append(`${DATA.tool} report`);
  let width = window.innerWidth, timer = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(timer);
    timer = setTimeout(() => sections.filter((s) => s.series).forEach((s) => { s.drawCurve(); s.drawSpread(); }), 100);
  });
  window.addEventListener("beforeprint", () => { for (const place of [...waiting.keys()]) drawNow(place); });
  document.documentElement.dataset.ready = String(sections.length);
}

start();
