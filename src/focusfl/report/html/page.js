/* Draws the plots that plots.py describes when they come into view, at the width they have.
   Their colours are those of page.css; data is only ever set as text. */
"use strict";
const PLOTS = JSON.parse(document.getElementById("plots").textContent);
const TIP = document.getElementById("tip");
const WARP = { linear: v => v, root: v => Math.sign(v) * Math.sqrt(Math.abs(v)), log: Math.log10 };
const range = n => [...Array(n).keys()];
const text = v => String(+v.toPrecision(4)).replace("-", "−");
const far = (values, v) => values.map(u => Math.abs(u - v));
const nearest = (values, v) => far(values, v).indexOf(Math.min(...far(values, v)));
const scale = ({ kind, lo, hi }, from, to) => v =>
  from + ((WARP[kind](v) - WARP[kind](lo)) / (WARP[kind](hi) - WARP[kind](lo))) * (to - from);

function add(parent, name, attributes = {}, words = "") {
  const svg = name === "svg" || parent instanceof SVGElement;
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = words;
  return parent.appendChild(node);
}
const rect = (svg, look, x, y, width, height) => add(svg, "rect", { class: look, x, y, width, height });
const write = (svg, look, x, y, words) => add(svg, "text", { class: look, x, y }, words);

function menu(host, words, options) {
  const list = add(add(host, "label", {}, words), "select");
  for (const option of options) add(list, "option", {}, option);
  return list;
}

/* One panel per item, with its name above. All are there before any is filled, so that their width is known. */
function panels(grid, items, fill) {
  grid.replaceChildren();
  const cells = items.map(item => add(grid, "div", { class: "panel" }));
  items.forEach((item, i) => {
    add(cells[i], "h4", { class: item.look ?? "" }, item.name);
    fill(cells[i], item);
  });
}

/* An empty plot with its vertical axis. */
function frame(cell, height, label, axis) {
  const width = cell.clientWidth, right = width - 6, top = 8, bottom = height - 24;
  const svg = add(cell, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const y = scale(axis, bottom, top), left = 12 + 6.8 * Math.max(4, ...axis.ticks.map(v => text(v).length));
  for (const v of axis.ticks) {
    add(svg, "path", { class: v === 0 ? "zero" : "rule", d: `M${left} ${y(v)}H${right}` });
    write(svg, "end", left - 6, y(v) + 4, text(v));
  }
  return { svg, y, left, right, top, bottom, below: bottom + 17 };
}

/* Shows a tooltip: find(x, y) returns its lines, heading first. */
function hover(svg, find, leave = () => {}) {
  svg.onpointermove = svg.onpointerdown = event => {
    const box = svg.getBoundingClientRect(), k = svg.viewBox.baseVal.width / box.width;
    const said = find((event.clientX - box.left) * k, (event.clientY - box.top) * k);
    TIP.replaceChildren();
    for (const [words, look] of said) add(TIP, "div", { class: look ?? "" }, words);
    TIP.hidden = false;
    const x = event.clientX + 14, room = document.documentElement.clientWidth - TIP.offsetWidth;
    TIP.style.left = `${Math.max(4, x < room ? x : x - TIP.offsetWidth - 28)}px`;
    TIP.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - TIP.offsetHeight - 4))}px`;
  };
  svg.onpointerleave = () => { TIP.hidden = true; leave(); };
}

function bars(host, plot) {
  const axis = menu(host, "Scale, the same for every method:", plot.axes.map(a => a.name));
  const grid = add(host, "div", { class: "grid" });
  return () => panels(grid, plot.panels, (cell, panel) => {
    const f = frame(cell, 150, `${panel.name}: excess risk of each agent`, plot.axes[axis.selectedIndex]);
    const unit = (f.right - f.left) / plot.units, at = u => f.left + u * unit;
    for (const [name, a, b] of plot.groups) {
      f.svg.prepend(rect(f.svg, "ground", at(a), f.top, (b - a) * unit, f.bottom - f.top));
      if ((b - a) * unit > 7 * name.length) write(f.svg, "mid", at((a + b) / 2), f.below, name);
    }
    plot.slots.forEach((u, j) => {
      const [high, low] = [f.y(0), f.y(panel.mean[j])].sort((a, b) => a - b);
      rect(f.svg, `bar ${panel.look}`, at(u - 0.4), high, 0.8 * unit, Math.max(low - high, 0.75));
    });
    hover(f.svg, x => {
      const j = nearest(plot.slots.map(at), x), risk = `excess risk ${text(panel.mean[j])} ± ${text(panel.sd[j])}`;
      return [[panel.name, "head"], [plot.who[j]], [risk], [panel.over]];
    });
  });
}

function lines(host, plot) {
  const legend = add(host, "div", { class: "legend" }), grid = add(host, "div", { class: "grid" });
  let held = -1;
  const light = chosen => host.querySelectorAll("[data-method]").forEach(node => {
    node.classList.toggle("dim", chosen >= 0 && +node.dataset.method !== chosen);
    node.classList.toggle("lit", +node.dataset.method === chosen);
  });
  plot.methods.forEach((method, i) => {
    const button = add(legend, "button", { type: "button", "data-method": i });
    add(add(button, "svg", { viewBox: "0 0 34 10" }), "path", { class: `line ${method.look}`, d: "M1 5H33" });
    add(button, "span", {}, method.name);
    button.onclick = () => light((held = held === i ? -1 : i));
  });
  return () => panels(grid, plot.panels, (cell, panel) => {
    const f = frame(cell, 280, panel.name, panel.axis), x = scale(plot.axis, f.left + 6, f.right - 10);
    for (const t of plot.axis.ticks) write(f.svg, "mid", x(t), f.below, t);
    panel.series.forEach((s, i) => {
      const there = range(plot.x.length).filter(j => s.y[j] !== null), look = plot.methods[i].look;
      const path = (values, js) => js.map(j => `${x(plot.x[j]).toFixed(1)} ${f.y(values[j]).toFixed(1)}`).join("L");
      const outline = `M${path(s.low, there)}L${path(s.high, [...there].reverse())}Z`;
      add(f.svg, "path", { class: `range ${look}`, "data-method": i, d: outline });
      add(f.svg, "path", { class: `line ${look}`, "data-method": i, d: `M${path(s.y, there)}h0` });
    });
    const cross = add(f.svg, "path", { class: "cross" });
    light(held);
    hover(f.svg, (px, py) => {
      const j = nearest(plot.x.map(x), px), value = i => panel.series[i].y[j];
      const there = range(panel.series.length).filter(i => value(i) !== null).sort((a, b) => value(b) - value(a));
      const near = there[nearest(there.map(i => f.y(value(i))), py)];
      cross.setAttribute("d", `M${x(plot.x[j])} ${f.top}V${f.bottom}`);
      light(near);
      const spread = ({ low, high }) => (low[j] < high[j] ? ` (seeds: ${text(low[j])} to ${text(high[j])})` : "");
      const say = i => `${plot.methods[i].name} ${text(value(i))}${i === near ? spread(panel.series[i]) : ""}`;
      return [[`${panel.name}, round ${plot.x[j]}`, "head"], ...there.map(i => [say(i), i === near ? "near" : ""])];
    }, () => { light(held); cross.setAttribute("d", ""); });
  });
}

function labels(host, plot) {
  const chosen = menu(host, "Method:", plot.methods.map(method => method.name));
  const grid = add(host, "div", { class: "grid" }), tall = Math.max(3, Math.min(16, 320 / plot.units));
  return () => panels(grid, plot.methods[chosen.selectedIndex].runs, (cell, run) => {
    const f = frame(cell, plot.units * tall + 32, `Labels, ${run.name}`, plot.axis), T = run.rounds.length;
    const wide = (f.right - f.left) / T, x = t => f.left + t * wide, y = u => f.top + u * tall;
    plot.groups.forEach(([name, a, b], g) => {  // the true cluster, in the colour that its agents should have
      rect(f.svg, `k${g % 6}`, f.left - 12, y(a), 8, (b - a) * tall);
      if ((b - a) * tall > 11) write(f.svg, "end", f.left - 17, y((a + b) / 2) + 4, name);
    });
    for (const [j, from, to, look] of run.cells)
      rect(f.svg, `cell ${look}`, x(from), y(plot.slots[j] - 0.5), (to - from) * wide, tall);
    for (let t = 0; t < T; t += Math.ceil(34 / wide)) write(f.svg, "mid", x(t + 0.5), f.below, run.rounds[t]);
    hover(f.svg, (px, py) => {
      const t = nearest(range(T).map(s => x(s + 0.5)), px), j = nearest(plot.slots.map(y), py);
      return [[`round ${run.rounds[t]}`, "head"], [plot.who[j]], [`pi ${run.pi[t][j].join("  ")}`]];
    });
  });
}

function start(host) {
  if (host.dataset.begun) return;
  host.dataset.begun = "yes";
  const plot = PLOTS[host.dataset.plot], draw = { bars, lines, labels }[plot.kind](host, plot);
  let width = 0;
  const fit = () => { if (host.clientWidth && host.clientWidth !== width) { width = host.clientWidth; draw(); } };
  fit();
  host.onchange = draw;
  new ResizeObserver(() => requestAnimationFrame(fit)).observe(host);
}
const hosts = document.querySelectorAll(".plot");
const view = new IntersectionObserver(seen => seen.forEach(entry => entry.isIntersecting && start(entry.target)));
hosts.forEach(host => view.observe(host));
addEventListener("scroll", () => { TIP.hidden = true; }, { passive: true });
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach(details => { details.open = true; });
  hosts.forEach(start);
});
