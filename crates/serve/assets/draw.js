// Drawing: the path as an SVG (a list on a phone), and the curves. No state of its own but the charts.
"use strict";

const Draw = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const NAMES = { napi: "NAPI", xdp: "XDP" };
  const name = (place) => NAMES[place] || place;
  const css = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();

  function node(tag, attributes, text) {
    const made = document.createElementNS(NS, tag);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function html(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  /// `812 /s`, `31.2 k/s`, `1.20 M/s`.
  function rate(packets, seconds) {
    const r = packets / Math.max(seconds, 1e-9);
    if (r >= 1e6) return (r / 1e6).toFixed(2) + " M/s";
    if (r >= 1e3) return (r / 1e3).toFixed(1) + " k/s";
    if (r >= 10 || r === 0) return r.toFixed(0) + " /s";
    return r.toFixed(1) + " /s";
  }

  const sum = (map) => Object.values(map || {}).reduce((a, b) => a + b, 0);
  /// Drops that are losses: what a guard sheds was not to be kept.
  const losses = (drops) => Object.fromEntries(Object.entries(drops || {}).filter(([why]) => why !== "shed"));
  const percent = (level) => (level * 100).toFixed(0) + " %";

  /// Packets into and out of each stage; a stage that does not count them passes on what came, less what it lost.
  function flows(path) {
    let before = 0;
    return path.map((stage) => {
      const came = stage.in ?? before;
      const left = stage.out ?? Math.max(came - sum(stage.drops), 0);
      before = left;
      return { stage, came, left, lost: sum(losses(stage.drops)), shed: stage.drops?.shed ?? 0 };
    });
  }

  // The largest flow lately is as high as a band can be, so that heights can be compared over time.
  let scale = 1;
  function rescale(list, seconds) {
    const most = Math.max(...list.map((one) => one.came / seconds), 1);
    scale = most > scale ? most : Math.max(most, scale * 0.97);
  }

  function path(snapshot, worst) {
    const seconds = Math.max(snapshot.interval_s, 1e-9);
    const all = flows(snapshot.path);
    rescale(all, seconds);
    const output = all.find((one) => one.stage.place === "output");
    const main = all.filter((one) => one !== output);
    svg(main, output, seconds, worst);
    steps(main, output, seconds, worst);
  }

  function svg(main, output, seconds, worst) {
    const root = document.getElementById("path");
    const width = root.clientWidth || 1100;
    const columns = main.length + (output ? 1 : 0);
    const column = width / columns;
    const box = Math.min(60, column * 0.42);
    const top = 52, height = 84, bottom = top + height;
    const band = (packets) => (packets > 0 ? Math.max((packets / seconds / scale) * (height - 8), 1.5) : 0);
    root.setAttribute("viewBox", `0 0 ${width} 236`);
    const parts = [hatch()];
    const flow = (x, w, packets) => {
      const h = band(packets);
      parts.push(node("rect", { class: "band", "data-packets": packets, x, y: bottom - 4 - h, width: Math.max(w, 0), height: h }));
    };
    main.forEach((one, i) => {
      const left = i * column + (column - box) / 2;
      if (i === 0) flow(0, left, one.came);
      if (one.stage.level === undefined) flow(left, box, one.came);
      const last = i === main.length - 1;
      if (!last) flow(left + box, column - box, main[i + 1].came);
      stage(parts, one, left, box, top, height, seconds, worst, column, band);
      const middle = i * column + column / 2;
      if (i === 0) parts.push(node("text", { class: "dim small", x: 0, y: top - 8 }, "offered"));
      const shown = last ? one.came : one.left;
      parts.push(node("text", { x: middle, y: 38, "text-anchor": "middle" }, rate(shown, seconds)));
      parts.push(node("text", { class: "dim", x: middle, y: 18, "text-anchor": "middle" }, name(one.stage.place)));
    });
    if (output) {
      const x = main.length * column;
      parts.push(node("path", { d: `M${x} 8V${bottom}`, stroke: css("--line"), "stroke-dasharray": "3 4", fill: "none" }));
      const left = x + (column - box) / 2, middle = x + column / 2;
      flow(left + box, column - box - (column - box) / 2, output.left);
      if (output.stage.level === undefined) flow(left, box, output.left);
      stage(parts, output, left, box, top, height, seconds, worst, column, band);
      parts.push(node("text", { class: "dim", x: middle, y: 18, "text-anchor": "middle" }, "output"));
      parts.push(node("text", { x: middle, y: 38, "text-anchor": "middle" }, rate(output.left, seconds)));
    }
    root.setAttribute("aria-label", main.map((one) => `${name(one.stage.place)} ${rate(one.left, seconds)}`).join(", "));
    root.replaceChildren(...parts);
  }

  function hatch() {
    const pattern = node("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse" });
    pattern.append(node("rect", { width: 6, height: 6 }), node("path", { d: "M0 6L6 0" }));
    const defs = node("defs", {});
    defs.append(pattern);
    return defs;
  }

  function stage(parts, one, left, box, top, height, seconds, worst, column, band) {
    const place = one.stage.place, level = one.stage.level, bottom = top + height, middle = left + box / 2;
    const isWorst = place === worst && one.lost > 0;
    // What has no level is no tank: packets pass through it.
    const shape = level === undefined ? "box open" : "box";
    const id = { class: isWorst ? `${shape} worst` : shape, x: left, y: top, width: box, height, rx: 4, "data-place": place };
    parts.push(node("rect", id));
    if (level !== undefined) {
      const h = Math.max(Math.min(level, 1) * (height - 4), level > 0 ? 1.5 : 0);
      parts.push(node("rect", { class: level > 0.9 ? "full" : "fill", x: left + 2, y: bottom - 2 - h, width: box - 4, height: h }));
    }
    const under = bottom + 18;
    const label = (y, text, className) =>
      parts.push(node("text", { class: className, x: middle, y, "text-anchor": "middle" }, text));
    if (one.lost + one.shed > 0) {
      const w = Math.min(Math.max(band(one.lost + one.shed), 3), box);
      const className = one.lost > 0 ? "drop" : "shed";
      parts.push(node("rect", { class: className, x: middle - w / 2, y: bottom + 1, width: w, height: 34 }));
    }
    if (one.lost === 0 && one.shed > 0) label(bottom + 54, `${rate(one.shed, seconds)} shed by weir`, "dim small");
    if (one.lost > 0) {
      label(bottom + 54, `${rate(one.lost, seconds)} lost`, "lost");
      const reasons = Object.entries(losses(one.stage.drops)).sort((a, b) => b[1] - a[1]);
      const room = Math.floor(column / 6.5);
      const text = reasons.map(([why]) => why).join(", ");
      label(bottom + 72, text.length > room ? text.slice(0, room - 1) + "…" : text, "dim small");
      if (isWorst) label(bottom + 90, "▲ loses most", "lost small");
    }
    if (level !== undefined) {
      const x = one.lost + one.shed > 0 ? left + box + 4 : middle;
      const anchor = one.lost + one.shed > 0 ? "start" : "middle";
      parts.push(node("text", { class: "dim small", x, y: under, "text-anchor": anchor }, `${percent(level)} full`));
    }
  }

  /// The same as a list, from top to bottom.
  function steps(main, output, seconds, worst) {
    const list = main.concat(output ? [output] : []).map((one) => {
      const item = html("li", one.stage.place === worst && one.lost > 0 ? "worst" : "");
      const bar = html("span", "bar");
      const part = (className, packets) => {
        const piece = html("i", className);
        piece.style.width = Math.min((packets / seconds / scale) * 100, 100) + "%";
        bar.append(piece);
      };
      const passed = one.stage.place === "program" ? one.came : one.left;
      part("flow", passed);
      if (one.lost > 0) part("lost", one.lost);
      item.append(html("span", "dim", name(one.stage.place)), bar, html("span", "rate", rate(passed, seconds)));
      const level = one.stage.level;
      if (one.lost > 0) {
        const why = Object.keys(losses(one.stage.drops)).join(", ");
        item.append(html("span", "note lost", `${rate(one.lost, seconds)} lost: ${why}`));
      }
      if (one.shed > 0) item.append(html("span", "note", `${rate(one.shed, seconds)} shed by weir`));
      if (level !== undefined) item.append(html("span", "note", `fullest queue ${percent(level)}`));
      return item;
    });
    document.getElementById("steps").replaceChildren(...list);
  }

  // The curves.

  const charts = {};
  let newest = []; // what the charts show, for legends that tell more than the curve
  let zoom = null, span = 60, onZoom = () => {};

  function range(u) {
    if (zoom) return zoom;
    const x = u.data[0];
    const last = x.length ? x[x.length - 1] : Date.now() / 1e3;
    return [last - span, last];
  }

  function options(width, series, more) {
    const axis = { stroke: css("--dim"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    return {
      width,
      height: 170,
      series: [{ value: (u, v) => (v == null ? "" : clock(v)), label: "at" }, ...series],
      scales: { x: { time: true, range }, y: more.log ? { distr: 3, log: 10 } : { range: more.range } },
      axes: [
        { ...axis, space: 80, size: 26, values: (u, splits) => splits.map(clock) },
        more.log ? { ...axis, size: 46, splits: decades, values: (u, splits) => splits.map(String) } : { ...axis, size: 46 },
      ],
      bands: more.bands || [],
      cursor: { sync: { key: "weir" }, drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
      legend: { live: true },
      hooks: {
        setSelect: [(u) => {
          if (u.select.width < 4) return;
          zoom = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
          u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          onZoom(zoom);
        }],
        ready: [(u) => u.over.addEventListener("dblclick", () => { zoom = null; onZoom(zoom); })],
      },
    };
  }

  /// Powers of ten of an axis.
  function decades(u, axis, low, high) {
    const all = [];
    for (let power = Math.ceil(Math.log10(low) - 1e-6); 10 ** power <= high * 1.001; power++) all.push(Number(`1e${power}`));
    return all;
  }

  const two = (n) => String(n).padStart(2, "0");
  function clock(seconds) {
    const at = new Date(seconds * 1e3);
    return [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":");
  }

  const value = (digits) => (u, v) => (v == null ? "" : v.toFixed(digits));
  const line = (label, colour, digits, more) => ({
    label, stroke: css(colour), width: 1.5, points: { show: false }, value: value(digits), ...more,
  });
  const faint = (colour) => css(colour) + "66";

  function make(id, series, more, data) {
    const place = document.getElementById(id);
    const key = series.map((one) => one.label).join("\n") + css("--page");
    const known = charts[id];
    if (known && known.key === key) {
      known.plot.setData(data);
    } else {
      if (known) known.plot.destroy();
      charts[id] = { plot: new uPlot(options(place.clientWidth || 360, series, more), data, place), key };
    }
    // Without a pointer in it the legend tells the newest numbers.
    const { plot } = charts[id];
    if (!(plot.cursor.left >= 0) && data[0].length) plot.setLegend({ idx: data[0].length - 1 }, false);
  }

  const nice = (u, low, high) => [0, Math.max(high * 1.1, 0.1)];
  const hundred = () => [0, 100];

  // What is drawn of the waits; stack and socket are in the whole.
  const WAITS = { whole: "--flow", tcp: "--c2", wakeup: "--c3", softirq: "--c4", backlog: "--programs" };

  /// `points` in order of time. Where intervals are missing the curve has a gap.
  function curves(points) {
    const rows = [];
    points.forEach((point, i) => {
      const before = points[i - 1];
      if (before && point.time_s - before.time_s > point.interval_s * 1.8 + 0.5) rows.push({ time_s: before.time_s + 0.001 });
      rows.push(point);
    });
    const x = rows.map((row) => row.time_s);
    const pick = (of) => rows.map((row) => (row.interval_s === undefined ? null : of(row)));
    const k = (count) => (row) => count(row) / Math.max(row.interval_s, 1e-9) / 1e3;
    const gone = (row) => sum(row.lost);
    make("chart-packets", [
      line("lost or shed", "--lost", 1, { value: (u, v, s, i) => (v == null ? "" : (v - u.data[2][i]).toFixed(1)) }),
      line("delivered", "--flow", 1, { fill: faint("--flow") }),
      line("offered", "--text", 1, { width: 1, dash: [3, 3] }),
    ], { range: nice, bands: [{ series: [1, 2], fill: faint("--lost") }] },
    [x, pick(k((r) => r.delivered + gone(r))), pick(k((r) => r.delivered)), pick(k((r) => r.offered))]);

    const share = (of) => pick((row) => of(row) * 100);
    newest = rows;
    const own = (of) => (u, v, s, i) => {
      const row = i == null ? null : newest[i];
      return !row || row.interval_s === undefined ? "" : (of(row) * 100).toFixed(0);
    };
    make("chart-cpu", [
      line("programs", "--programs", 0, { value: own((r) => r.cpu_programs) }),
      line("weir", "--weir", 0, { value: own((r) => r.cpu_weir) }),
      line("packets", "--packets", 0, { value: own((r) => r.cpu_packets), fill: faint("--packets") }),
    ], { range: hundred, bands: [{ series: [1, 2], fill: faint("--programs") }, { series: [2, 3], fill: faint("--weir") }] },
    [x, share((r) => r.cpu_packets + r.cpu_weir + r.cpu_programs), share((r) => r.cpu_packets + r.cpu_weir), share((r) => r.cpu_packets)]);

    const most = new Map();
    for (const point of points) {
      for (const [who, level] of Object.entries(point.levels)) most.set(who, Math.max(most.get(who) || 0, level));
    }
    const who = [...most].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).slice(0, 4).map(([label]) => label).sort();
    const colours = ["--flow", "--c2", "--c3", "--c4"];
    make("chart-levels", who.map((label, i) => line(label, colours[i], 0, { dash: i ? [8, 2 + 2 * i] : undefined })),
      { range: hundred }, [x, ...who.map((label) => pick((r) => (label in r.levels ? r.levels[label] * 100 : null)))]);

    const told = Object.keys(WAITS).filter((wait) => points.some((point) => point.waits && wait in point.waits));
    if (!told.length) return;
    make("chart-waits", told.map((wait) => line(wait, WAITS[wait], 2)), { log: true },
      [x, ...told.map((wait) => pick((r) => (r.waits && wait in r.waits ? Math.max(r.waits[wait], 0.1) / 1e3 : undefined)))]);
  }

  function resize() {
    for (const id in charts) {
      const width = document.getElementById(id).clientWidth;
      if (width && width !== charts[id].plot.width) charts[id].plot.setSize({ width, height: 170 });
    }
  }

  return {
    html, rate, percent, path, curves, resize, name, losses,
    setSpan(seconds) { span = seconds; zoom = null; },
    whenZoomed(then) { onZoom = then; },
    zoomed: () => zoom,
    span: () => span,
  };
})();
