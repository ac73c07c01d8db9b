// Curves, drawn as SVG as wide as their place is. Colour says the backend, the dash the route, the marker the file.
const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "7 4", "2 3", "9 3 2 3"];
const COLOURS = 8;
const MARKED = 200; // points of a curve, past which each is no longer marked by itself

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, v] of Object.entries(attributes)) made.setAttribute(key, v);
  made.append(...children);
  return made;
}

function marker(kind, x, y, r, attributes) {
  const path = [
    `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`,
    `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
    `M${x},${y - 1.3 * r}l${1.2 * r},${2.2 * r}h${-2.4 * r}z`,
    `M${x},${y - 1.4 * r}l${1.4 * r},${1.4 * r}l${-1.4 * r},${1.4 * r}l${-1.4 * r},${-1.4 * r}z`,
  ][kind % 4];
  return svg("path", { d: path, ...attributes });
}

function stroke(style) { return `var(--s${style.colour % COLOURS})`; }

function painted(style) {
  return style.hollow
    ? { fill: "var(--card)", stroke: stroke(style), "stroke-width": 1.6 }
    : { fill: stroke(style), stroke: stroke(style), "stroke-width": 1 };
}

function swatch(style) {
  return svg("svg", { viewBox: "0 0 34 14", "aria-hidden": "true" },
    svg("line", { x1: 1, x2: 33, y1: 7, y2: 7, stroke: stroke(style), "stroke-width": 2, "stroke-dasharray": DASHES[style.dash % 4] }),
    marker(style.marker, 17, 7, 4, painted(style)));
}

// Places on an axis. Logarithmic where all values are above 0 and far enough apart.
function scale(values, from, to, logarithmic) {
  let low = Infinity, high = -Infinity;
  for (const v of values) { low = Math.min(low, v); high = Math.max(high, v); }
  const log = logarithmic && low > 0;
  if (low === high) { low = log ? low / 2 : low - 1; high = log ? high * 2 : high + 1; }
  const f = log ? Math.log : (v) => v;
  const at = (v) => from + (f(v) - f(low)) / (f(high) - f(low)) * (to - from);
  return { at, low, high, log };
}

function decades(s, most) {
  const found = [];
  if (!s.log) {
    const step = 10 ** Math.floor(Math.log10((s.high - s.low) / 4 || 1));
    const by = [1, 2, 5, 10].map((m) => m * step).find((d) => (s.high - s.low) / d <= most) || 10 * step;
    for (let v = Math.ceil(s.low / by) * by; v <= s.high + by * 1e-9; v += by) found.push(Number(v.toPrecision(12)));
    return found;
  }
  for (const steps of [[1, 2, 5], [1, 3], [1]]) {
    found.length = 0;
    for (let e = Math.floor(Math.log10(s.low)); e <= Math.ceil(Math.log10(s.high)); e++) {
      for (const m of steps) { const v = Number((m * 10 ** e).toPrecision(3)); if (v >= s.low && v <= s.high) found.push(v); }
    }
    if (found.length <= most) break;
  }
  while (found.length > most) for (let i = found.length - 2; i > 0; i -= 2) found.splice(i, 1);
  return found.length > 1 ? found : [s.low, s.high];
}

// chart: {label, x: {name, format, log}, y: {name, log}, series: [{name, style, points: [{x, y, low, high, told}]}], steps}
// Fills `place`; arrow keys walk through the points, and what they say is also spoken.
function drawChart(place, chart) {
  const width = Math.max(280, Math.min(place.clientWidth || 640, 1120));
  const height = Math.round(Math.min(420, Math.max(240, width * 0.5)));
  const left = 58, right = 14, top = 14, bottom = 46;
  const points = chart.series.flatMap((s) => s.points.map((p) => ({ ...p, series: s })));
  place.replaceChildren();
  if (!points.length) { place.append(element("p", { class: "soft" }, "Nothing was measured here.")); return; }
  const x = scale(points.map((p) => p.x), left + 10, width - right - 10, chart.x.log);
  const y = scale(points.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]), height - bottom, top + 6, chart.y.log);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chart.label });
  for (const v of decades(y, 9)) {
    const at = y.at(v);
    picture.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: at, y2: at }),
      svg("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, figure(v)));
  }
  const places = chart.x.values || decades(x, Math.floor(width / 70));
  const every = Math.ceil(places.length / Math.floor((width - left - right) / 46));
  places.forEach((v, index) => {
    const at = x.at(v);
    if (at < left || at > width - right || index % every) return;
    picture.append(svg("line", { class: "grid", x1: at, x2: at, y1: top, y2: height - bottom }),
      svg("text", { x: at, y: height - bottom + 17, "text-anchor": "middle" }, chart.x.format(v)));
  });
  picture.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
    svg("line", { class: "axis", x1: left, x2: left, y1: top, y2: height - bottom }),
    svg("text", { class: "title", x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, chart.x.name),
    svg("text", { class: "title", x: 13, y: (top + height - bottom) / 2, "text-anchor": "middle",
      transform: `rotate(-90 13 ${(top + height - bottom) / 2})` }, chart.y.name));
  for (const s of chart.series) drawSeries(picture, s, x, y, chart.steps);
  place.append(picture);
  walkable(place, picture, points.map((p) => ({ ...p, px: x.at(p.x), py: y.at(p.y) })), width);
}

function drawSeries(picture, series, x, y, steps) {
  const points = series.points;
  if (!points.length) return;
  const band = points.filter((p) => p.low !== null && p.low !== undefined);
  if (band.length > 1) {
    const there = band.map((p) => `${x.at(p.x)},${y.at(p.high)}`), back = band.map((p) => `${x.at(p.x)},${y.at(p.low)}`);
    picture.append(svg("polygon", { points: [...there, ...back.reverse()].join(" "), fill: stroke(series.style), opacity: 0.16 }));
  }
  const line = points.map((p) => `${x.at(p.x)},${y.at(p.y)}`).join(" ");
  picture.append(svg("polyline", { points: line, fill: "none", stroke: stroke(series.style), "stroke-width": 2,
    "stroke-dasharray": DASHES[series.style.dash % 4], "stroke-linejoin": "round" }));
  for (const p of points.length > MARKED ? [] : band) {
    const at = x.at(p.x);
    picture.append(svg("line", { x1: at, x2: at, y1: y.at(p.low), y2: y.at(p.high), stroke: stroke(series.style), "stroke-width": 1.4 }));
  }
  if (!steps && points.length <= MARKED) for (const p of points) picture.append(marker(series.style.marker, x.at(p.x), y.at(p.y), 3.6, painted(series.style)));
}

function walkable(place, picture, points, width) {
  const tip = element("div", { class: "tip", hidden: true });
  const halo = svg("circle", { class: "halo", r: 8, visibility: "hidden" });
  picture.append(halo);
  place.append(tip);
  place.tabIndex = 0;
  place.setAttribute("role", "group");
  place.setAttribute("aria-label", `${picture.getAttribute("aria-label")}. Arrow keys walk through the points.`);
  let here = -1;
  const go = (index, spoken) => {
    here = index;
    const p = points[here], factor = place.clientWidth / width;
    halo.setAttribute("cx", p.px); halo.setAttribute("cy", p.py); halo.setAttribute("visibility", "visible");
    tip.textContent = p.told;
    tip.hidden = false;
    tip.style.left = `${Math.min(Math.max(4, p.px * factor + 12), Math.max(4, place.clientWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${Math.max(4, p.py * factor - tip.offsetHeight - 8)}px`;
    if (spoken) document.getElementById("live").textContent = p.told;
  };
  const leave = () => { tip.hidden = true; halo.setAttribute("visibility", "hidden"); };
  place.onkeydown = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") { leave(); return; }
    if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      if (here < 0) { go(0, true); event.preventDefault(); return; }
      const same = points.map((p, i) => i).filter((i) => points[i].x === points[here].x).sort((a, b) => points[a].py - points[b].py);
      go(same[(same.indexOf(here) + (event.key === "ArrowUp" ? same.length - 1 : 1)) % same.length], true);
    } else if (by) go(here < 0 ? 0 : (here + by + points.length) % points.length, true);
    else return;
    event.preventDefault();
  };
  place.onblur = leave;
  place.onpointerleave = leave;
  place.onpointermove = (event) => {
    const box = picture.getBoundingClientRect(), factor = width / box.width;
    const px = (event.clientX - box.left) * factor, py = (event.clientY - box.top) * factor;
    let best = 0, least = Infinity;
    points.forEach((p, i) => { const d = (p.px - px) ** 2 + (p.py - py) ** 2; if (d < least) { least = d; best = i; } });
    if (least < 1600) go(best, false); else leave();
  };
}
