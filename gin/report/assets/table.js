// Tables of rows: built when they are opened, a part at a time; every one can be saved as CSV.
const FIRST = 100;

function csv(rows, names) {
  const quote = (v) => (v === null ? "" : /[",\n]/.test(String(v)) ? `"${String(v).replaceAll('"', '""')}"` : String(v));
  return [names.join(","), ...rows.map((i) => names.map((name) => quote(value(i, name))).join(","))].join("\n") + "\n";
}

function save(name, text) {
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function csvButton(label, name, rows) {
  return element("button", { class: "act", type: "button", onclick: () => save(name, csv(rows(), [...TEXTS, ...NUMBERS])) }, label);
}

function heading(name) {
  const about = unit(name);
  return about === name ? name : `${name.replace(/_(us|GBps|Mops|percent)$/, "").replaceAll("_", " ")}, ${about.split(" ").pop()}`;
}

// A details element with the rows as a table, sorted by a click on a column's head.
function tableOf(title, rows, file) {
  const box = element("details", {}, element("summary", {}, `${title} (${rows.length} rows)`));
  const names = [...TEXTS, ...NUMBERS].filter((name) => distinct(rows, name).length > 1 || name === "median_us" || name === "wrong");
  const same = [...TEXTS, ...NUMBERS].filter((name) => !names.includes(name) && value(rows[0], name) !== null);
  let order = rows, by = null, down = false, shown = FIRST;
  const place = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title });
  const more = element("button", { class: "act", type: "button", onclick: () => { shown = Infinity; fill(); } });
  const sort = (name) => {
    down = by === name && !down;
    by = name;
    order = [...rows].sort((a, b) => {
      const x = value(a, name), y = value(b, name);
      if (x === null || y === null) return (x === null) - (y === null);
      return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
    });
    fill();
  };
  const fill = () => {
    const head = element("tr", {}, ...names.map((name) => element("th", {
      scope: "col", class: TEXTS.includes(name) ? "text" : null,
      "aria-sort": by === name ? (down ? "descending" : "ascending") : null,
    }, element("button", { type: "button", onclick: () => sort(name) }, heading(name)))));
    const lines = order.slice(0, shown).map((i) => element("tr", {}, ...names.map((name) => element("td", {
      class: TEXTS.includes(name) ? "text" : name === "wrong" && value(i, name) ? "wrong" : null,
    }, show(name, value(i, name))))));
    place.replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...lines)));
    more.hidden = order.length <= shown;
    more.textContent = `Show all ${order.length} rows`;
  };
  box.addEventListener("toggle", () => {
    if (!box.open || place.firstChild) return;
    fill();
    box.append(
      element("p", { class: "soft" }, `The same in all: ${same.map((name) => `${name}=${show(name, value(rows[0], name))}`).join(", ") || "nothing"}`),
      element("div", { class: "controls" }, csvButton("Save as CSV", file, () => order), more), place);
  });
  return box;
}
