"use strict";
const facts = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main");
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 420, HEIGHT = 230, LEFT = 56, RIGHT = 10, TOP = 8, BOTTOM = 28;
let smoothing = 0.6;

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
const colour = i => `var(--c${i % 8})`;
function number(x) {
  if (x === null || x === undefined) return "-";
  if (typeof x !== "number") return String(x);
  if (Number.isInteger(x) && Math.abs(x) < 1e7) return String(x);
  const size = Math.abs(x);
  return size !== 0 && (size >= 1e5 || size < 1e-3) ? x.toExponential(3) : String(Number(x.toPrecision(5)));
}

// A table whose columns sort at a click on their titles: numbers by value, empty cells last.
function table(columns, rows) {
  const head = make("tr"), body = make("tbody"), found = make("table", {}, make("thead", {}, head), body);
  const numeric = columns.map((_, i) => rows.some(r => typeof r[i] === "number"));
  const fill = list => body.replaceChildren(...list.map(row => make("tr", {}, ...row.map((x, i) =>
    make("td", numeric[i] ? {class: "number"} : {}, x instanceof Node ? x : number(x))))));
  columns.forEach((title, i) => {
    const cell = make("th", numeric[i] ? {class: "number", tabindex: 0} : {tabindex: 0}, title);
    const sort = () => {
      const up = cell.getAttribute("aria-sort") !== "ascending";
      for (const other of head.children) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", up ? "ascending" : "descending");
      const empty = x => x === null || x === undefined;
      fill([...rows].sort((a, b) => empty(a[i]) || empty(b[i]) ? empty(a[i]) - empty(b[i])
        : (up ? 1 : -1) * (numeric[i] ? Number(a[i]) - Number(b[i]) : String(a[i]).localeCompare(String(b[i])))));
    };
    cell.addEventListener("click", sort);
    cell.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
    head.append(cell);
  });
  fill(rows);
  return make("div", {class: "scroll"}, found);
}

// An exponential moving average that starts without bias.
function smoothed(points, weight) {
  let sum = 0, mass = 0;
  return points.map(([x, y]) => {
    sum = weight * sum + (1 - weight) * y;
    mass = weight * mass + (1 - weight);
    return [x, sum / mass];
  });
}
function ticks(low, high, count) {
  const raw = (high - low) / count;
  if (raw <= 1e-10 * Math.max(Math.abs(low), Math.abs(high))) return [low];  // steps that rounding would swallow
  const power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map(m => m * power).find(s => s >= raw);
  const first = Math.ceil(low / step), last = Math.floor(high / step + 1e-9);
  return Array.from({length: Math.max(0, last - first + 1)}, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

// One chart: every run's curve of a quantity. The vertical range leaves out the outermost hundredth of the values.
function chart(title, curves) {
  const svg = draw("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title});
  const value = make("div", {class: "value"});
  const figure = make("figure", {"data-chart": title}, make("figcaption", {}, title), svg, value);
  function render() {
    const smooth = curves.map(c => c.points.length > 20 ? smoothed(c.points, smoothing) : c.points);
    const ys = curves.flatMap(c => c.points.map(p => p[1])).sort((a, b) => a - b);
    const xs = curves.flatMap(c => c.points.map(p => p[0]));
    const cut = ys.length > 200 ? Math.floor(ys.length / 100) : 0;
    let low = Math.min(ys[cut], ...smooth.map(s => s[s.length - 1][1]));
    let high = Math.max(ys[ys.length - 1 - cut], ...smooth.map(s => s[s.length - 1][1]));
    if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high))) { const pad = Math.abs(low) * 0.05 || 1; low -= pad; high += pad; }
    const left = xs.reduce((a, b) => Math.min(a, b)), right = Math.max(xs.reduce((a, b) => Math.max(a, b)), left + 1);
    const X = x => LEFT + (x - left) / (right - left) * (WIDTH - LEFT - RIGHT);
    const Y = y => HEIGHT - BOTTOM - (Math.min(Math.max(y, low), high) - low) / (high - low) * (HEIGHT - TOP - BOTTOM);
    svg.replaceChildren();
    for (const t of ticks(low, high, 5)) {
      svg.append(draw("line", {class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: Y(t), y2: Y(t)}));
      svg.append(draw("text", {x: LEFT - 6, y: Y(t) + 4, "text-anchor": "end"}, number(t)));
    }
    for (const t of ticks(left, right, 5)) {
      const anchor = X(t) > WIDTH - RIGHT - 20 ? "end" : "middle";
      svg.append(draw("text", {x: X(t), y: HEIGHT - BOTTOM + 16, "text-anchor": anchor}, number(t)));
    }
    svg.append(draw("text", {x: LEFT - 6, y: HEIGHT - BOTTOM + 16, "text-anchor": "end"}, "step"));
    const line = points => points.map(([x, y], i) => `${i ? "L" : "M"}${X(x).toFixed(1)},${Y(y).toFixed(1)}`).join("");
    curves.forEach((c, i) => {
      if (smooth[i] !== c.points)
        svg.append(draw("path", {class: "curve raw", d: line(c.points), style: `stroke:${colour(c.run)}`}));
      const dash = c.dash ? {"stroke-dasharray": `${2 + 2 * c.dash} 3`} : {};
      svg.append(draw("path", {class: "curve", d: line(smooth[i]), style: `stroke:${colour(c.run)}`, ...dash}));
    });
    const cross = draw("line", {class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden"});
    svg.append(cross);
    svg.onpointermove = event => {
      const box = svg.getBoundingClientRect();
      const at = left + ((event.clientX - box.left) / box.width * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT) * (right - left);
      const near = curves.map(c => c.points.reduce((a, b) => Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a));
      cross.setAttribute("visibility", "visible");
      cross.setAttribute("x1", X(near[0][0]));
      cross.setAttribute("x2", X(near[0][0]));
      value.textContent = `step ${near[0][0]}: ` + curves.map((c, i) => `${c.label} ${number(near[i][1])}`).join(", ");
    };
    svg.onpointerleave = () => { cross.setAttribute("visibility", "hidden"); value.textContent = ""; };
  }
  render();
  figure.render = render;
  return figure;
}

function section(title, ...children) { main.append(make("h2", {}, title), ...children); }

function build() {
  const runs = facts.runs, several = runs.length > 1;
  main.replaceChildren(make("h1", {}, several ? `${runs.length} runs` : runs[0].name));
  if (several) {
    const legend = runs.map((r, i) => make("span", {class: "key", style: `--key:${colour(i)}`}, r.name));
    main.append(make("div", {class: "legend"}, ...legend));
  }
  section("What was run", table(["run", "recipe", "method", "model", "step", "of", "state", "best validation", "at step"],
    runs.map(r => [r.name, r.recipe, r.method, r.model, r.step, r.steps, r.state, r.best && r.best.value,
      r.best && r.best.step])));
  for (const r of runs) {
    main.append(make("p", {}, several ? `${r.name}: ` : "To repeat it: ", make("code", {}, r.command)));
    if (r.parent) main.append(make("p", {class: "soft"}, `It started from ${r.parent.run}, its ${r.parent.model} model `
      + `at step ${r.parent.step}` + (r.parent.changes.length ? `; changed: ${r.parent.changes.join("; ")}` : "")));
  }
  const differing = [...new Set(runs.flatMap(r => Object.keys(r.options)))]
    .filter(n => new Set(runs.map(r => JSON.stringify(r.options[n] ?? null))).size > 1);
  if (several && differing.length)
    section("What differs", table(["option", ...runs.map(r => r.name)],
      differing.map(n => [n, ...runs.map(r => r.options[n] === undefined ? null : String(r.options[n]))])));

  const curves = {};
  runs.forEach((r, i) => {
    const dashes = {};
    for (const [key, points] of Object.entries(r.series)) {
      const [name, ...label] = key.split(" ");
      if (facts.hidden.includes(name)) continue;
      dashes[name] = (dashes[name] ?? -1) + 1;
      const words = [several ? r.name : "", label.join(" ")].filter(Boolean).join(" ");
      (curves[name] ??= []).push({run: several ? i : dashes[name], dash: several ? dashes[name] : 0, points, label: words});
    }
  });
  const order = Object.keys(facts.names);
  const place = n => order.includes(n) ? order.indexOf(n) : order.length;
  const charts = Object.keys(curves).sort((a, b) => place(a) - place(b))
    .map(name => chart(facts.names[name] ?? name.replaceAll("_", " "), curves[name]));
  if (charts.length) {
    const slider = make("input", {type: "range", min: 0, max: 0.98, step: 0.02, value: smoothing, id: "smoothing"});
    slider.addEventListener("input", () => { smoothing = Number(slider.value); charts.forEach(c => c.render()); });
    section("Curves", make("div", {class: "controls"}, make("label", {for: "smoothing"}, "smoothing "), slider),
      make("div", {class: "charts"}, ...charts));
  }
  const columns = [...new Set(runs.flatMap(r => r.row_columns))];
  const rows = runs.flatMap(r => r.rows.map(row =>
    [...(several ? [r.name] : []), ...columns.map(name => row[r.row_columns.indexOf(name)] ?? null)]));
  if (rows.length) section("Replicas", make("p", {class: "soft"},
    "In this order: all seeds of the first learning rate, then all of the second, and so on."),
    table([...(several ? ["run"] : []), ...columns], rows));

  const figures = [...new Set(runs.flatMap(r => Object.keys(r.figures)))];
  if (figures.length) {
    section("Figures", table(["figure", ...runs.map(r => r.name)],
      figures.map(n => [n, ...runs.map(r => r.figures[n] ?? null)])));
    for (const r of runs) if (r.likelihood) main.append(make("p", {class: "soft"},
      `${several ? r.name + ": " : ""}the normaliser of the log-likelihood: ${r.likelihood}; `
      + `${r.evaluated.model} model at step ${r.evaluated.step}.`));
  } else section("Figures", make("p", {class: "soft"}, "Not evaluated yet: ", make("code", {}, `eblvm eval ${runs[0].folder}`)));

  section("Speed and memory", table(["run", "samples per second", "wall time (s)", "peak memory (MiB)", "folder size"],
    runs.map(r => [r.name, r.speed.samples_per_second ?? null, r.speed.seconds ?? null, r.speed.memory_mib ?? null, r.size])));
  for (const r of runs) if (r.pictures.length)
    section(several ? `Pictures: ${r.name}` : "Pictures", make("div", {class: "pictures"}, ...r.pictures.map(p =>
      make("figure", {}, make("figcaption", {}, p.title), make("img", {src: p.data, alt: p.title, loading: "lazy"})))));
  main.append(make("p", {class: "soft"}, "Made by eblvm report; this page needs no network."));
}

build();
if (facts.live) setInterval(async () => {
  const answer = await fetch(facts.live).catch(() => null);
  if (answer && answer.ok) {
    const fresh = await answer.json();
    if (JSON.stringify(fresh) !== JSON.stringify(facts.runs)) { facts.runs = fresh; build(); }
  }
}, 3000);
