// What the page says, and its connection to weir. Data is text from the host: it is only ever set as text.
"use strict";

(() => {
  const KEPT = 3600; // points that the page keeps
  const RETRY = 1000; // ms between two tries to reach weir
  const HOLD = 10; // intervals for which a finding stays
  const $ = (id) => document.getElementById(id);
  const { html, rate, percent } = Draw;

  let run = null, points = [], live = null, finding = null, arrived = 0, source = null, timer = null;

  const clock = (seconds) => new Date(seconds * 1e3).toLocaleTimeString();
  const grouped = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  const total = (map) => Object.values(map || {}).reduce((a, b) => a + b, 0);
  const kilo = (packets, seconds) => {
    if (packets === undefined || packets === null) return "n/a";
    const k = packets / seconds / 1e3;
    return packets > 0 && k < 0.05 ? "<0.1" : k.toFixed(1);
  };

  function state(word, text) {
    document.body.dataset.state = word;
    $("state").textContent = text;
  }

  function trouble(text) {
    $("trouble").hidden = !text;
    $("trouble").textContent = text || "";
  }

  // Connection.

  function connect() {
    clearTimeout(timer);
    if (source) source.close();
    source = new EventSource("stream");
    source.onmessage = (event) => take(JSON.parse(event.data));
    source.addEventListener("end", () => retry("ended"));
    source.onerror = () => retry(document.body.dataset.state === "ended" ? "ended" : "lost");
  }

  function retry(word) {
    if (source) source.close();
    source = null;
    const since = arrived ? ` since ${clock(arrived / 1e3)}` : "";
    if (live || word === "ended") state(word, word === "ended" ? "weir ended" : "no data");
    trouble(word === "ended"
      ? `weir ended at ${clock(Date.now() / 1e3)}. Start it again: weir watch --web. Trying every second.`
      : `No data${since}. Trying every second; the curves are filled when weir answers.`);
    clearTimeout(timer);
    timer = setTimeout(connect, RETRY);
  }

  // A connection can be dead without an error: a phone that left its network.
  setInterval(() => {
    if (!source || !live || live.recorded || document.body.dataset.state !== "live") return;
    if (Date.now() - arrived > Math.max(live.point.interval_s * 3000, 5000)) retry("lost");
  }, 1000);

  async function fill() {
    try {
      const answer = await fetch("history.json");
      if (!answer.ok) return;
      const history = await answer.json();
      if (history.run !== run) return;
      const first = history.points.length ? history.points[0].time_s : Infinity;
      const known = points.filter((point) => point.run !== run && point.time_s < first);
      points = known.concat(history.points.map((point) => ({ ...point, run }))).slice(-KEPT);
      Draw.curves(points);
    } catch {
      // The stream says it if weir is gone.
    }
  }

  function take(message) {
    const last = points.length ? points[points.length - 1] : null;
    const other = message.run !== run;
    const missed = !other && last && message.point.seq > last.seq + 1;
    if (other && message.recorded) points = [];
    run = message.run;
    live = message;
    arrived = Date.now();
    if (other || missed) {
      fill();
    } else if (!last || message.point.seq > last.seq) {
      points.push({ ...message.point, run });
      if (points.length > KEPT) points.shift();
    }
    if (other) finding = null;
    if (message.finding) finding = { ...message.finding, seq: message.point.seq, seconds: message.point.interval_s };
    trouble("");
    state("live", message.recorded ? "recording" : `live, every ${Number(message.point.interval_s.toFixed(1))} s`);
    show();
  }

  // What is shown.

  function show() {
    if (!live) return;
    const s = live.snapshot;
    $("host").textContent = s.host;
    $("interfaces").textContent = s.interfaces.map((i) => i.name).join(" ");
    $("time").textContent = live.recorded ? new Date(s.time_s * 1e3).toLocaleString() : clock(s.time_s);
    verdict(s);
    why();
    Draw.path(s, live.bottleneck);
    probes(s);
    Draw.curves(points);
    const at = live.point;
    $("caption-cpu").textContent = `fullest CPU, % (now CPU ${at.cpu})`;
    consumers(s);
    cpus(s);
    guards(s);
    accepts(s);
    ledger(s);
    notes(s);
    spanText();
  }

  function verdict(s) {
    const drops = Draw.losses(s.ledger.drops), shed = s.ledger.drops.shed ?? 0;
    const offered = s.ledger.offered, lost = total(drops), seconds = s.interval_s;
    const parts = s.path.find((stage) => stage.place === live.bottleneck);
    const where = parts
      ? `${Draw.name(parts.place)} (${Object.keys(Draw.losses(parts.drops)).join(", ")})`
      : Object.entries(drops).sort((a, b) => b[1] - a[1]).map(([place]) => place)[0];
    const share = lost / Math.max(offered, 1);
    let word, text;
    if (lost === 0) {
      word = "ok";
      text = offered ? `No packet is lost of ${rate(offered, seconds)}.` : "No packet arrives.";
    } else if (share >= 0.5) {
      word = "overload";
      text = `Overload: ${percent(share)} of ${rate(offered, seconds)} are lost, most at ${where}.`;
    } else {
      word = "loss";
      const part = share < 0.001 ? "under 0.1" : (share * 100).toFixed(1);
      text = `${rate(lost, seconds)} are lost, ${part} % of ${rate(offered, seconds)}, most at ${where}.`;
    }
    if (shed) text += ` weir sheds ${rate(shed, seconds)}.`;
    document.body.dataset.verdict = word;
    document.title = lost ? `! ${rate(lost, seconds)} lost, ${s.host}` : `weir, ${s.host}`;
    if ($("verdict-line").textContent !== text) $("verdict-line").textContent = text;
  }

  let told = "";
  function why() {
    if (finding && live.point.seq - finding.seq > HOLD) finding = null;
    $("why").hidden = !finding;
    if (!finding) return;
    const old = live.point.seq - finding.seq;
    const more = !old && live.findings > 1 ? ` (and ${live.findings - 1} more)` : "";
    const title = finding.title + more + (old ? ` (${(old * finding.seconds).toFixed(0)} s ago)` : "");
    $("why-title").textContent = title;
    // Rows are made anew only when they say something else: a selection or a button in use stays.
    const text = JSON.stringify([finding.evidence, finding.change, finding.effect, finding.source, finding.also]);
    if (text === told) return;
    told = text;
    const rows = [];
    const row = (label, content) => {
      const cell = html("dd");
      if (typeof content === "string") cell.textContent = content;
      else cell.append(...content);
      rows.push(html("dt", "", label), cell);
    };
    finding.evidence.forEach(([label, value]) => row(label, value));
    finding.also.forEach((also) => row("also explains", also));
    finding.change.forEach((command) => row("change", command.startsWith("#") ? command.slice(1).trim() : [html("code", "", command), copy(command)]));
    row("effect", finding.effect);
    row("source", finding.source);
    $("why-rows").replaceChildren(...rows);
  }

  function copy(command) {
    const button = html("button", "", "copy");
    button.type = "button";
    button.onclick = async () => {
      try {
        await navigator.clipboard.writeText(command);
        button.textContent = "copied";
      } catch {
        // Without a secure context a page may not write to the clipboard: the text is selected instead.
        getSelection().selectAllChildren(button.previousSibling);
        button.textContent = "selected";
      }
      setTimeout(() => (button.textContent = "copy"), 1500);
    };
    return button;
  }

  function bar(parts) {
    const made = html("span", "bar");
    for (const [className, share] of parts) {
      const piece = html("i", className);
      piece.style.width = Math.min(Math.max(share, 0), 1) * 100 + "%";
      made.append(piece);
    }
    return made;
  }

  function meter(...parts) {
    const made = html("span", "meter");
    made.append(...parts);
    return made;
  }

  function fullIn(seconds) {
    if (seconds === undefined || seconds === null) return "-";
    if (seconds <= 0) return "full";
    return seconds < 1 ? (seconds * 1e3).toFixed(0) + " ms" : seconds.toFixed(0) + " s";
  }

  function consumers(s) {
    const rows = s.consumers.slice(0, 24).map((c) => {
      const row = html("tr");
      const level = html("td", "level");
      if (c.level === undefined) level.textContent = "n/a";
      else level.append(meter(bar([[c.level > 0.9 ? "lost" : "flow", c.level]]), html("span", "", percent(c.level))));
      const gone = html("td", c.lost > 0 ? "lost" : "", kilo(c.lost, s.interval_s) + (c.lost > 0 ? "!" : ""));
      const who = html("td", "", c.pid ? `${c.process} ${c.pid}` : "?");
      who.title = c.local;
      row.append(who, html("td", "", c.socket), level, html("td", "", kilo(c.in, s.interval_s)),
        html("td", "", kilo(c.out, s.interval_s)), gone, html("td", "", fullIn(c.full_in_s)));
      return row;
    });
    $("consumers").replaceChildren(...rows);
    const more = s.consumers_quiet + s.consumers.length - rows.length;
    $("quiet").textContent = more > 0 ? `${grouped(more)} more` : rows.length ? "" : "no queue to a program is known";
  }

  function cpus(s) {
    const list = [...s.cpus].sort((a, b) => (s.cpus.length > 16 ? a.idle - b.idle : a.cpu - b.cpu)).slice(0, 64);
    $("cpus").replaceChildren(...list.map((c) => {
      const item = html("li");
      item.append(html("span", "dim", `CPU ${c.cpu}`),
        bar([["packets", c.irq + c.softirq + c.threads], ["weir", c.weir], ["programs", c.programs], ["steal", c.steal]]),
        html("span", "", percent(1 - c.idle)));
      return item;
    }));
  }

  function guards(s) {
    const all = s.guards || [];
    $("guard").hidden = !all.length;
    $("sources").replaceChildren(...all.flatMap((guard) => guard.sources).map((source) => {
      const row = html("tr");
      const name = html("td", "", source.name);
      name.title = source.reason;
      const gone = html("td", source.shed ? "shed" : "", kilo(source.packets === undefined ? undefined : source.shed || 0, s.interval_s));
      row.append(name, html("td", "", source.mode), html("td", "", String(source.cpu)),
        html("td", "", kilo(source.packets, s.interval_s)), html("td", "", kilo(source.turns, s.interval_s)),
        gone, html("td", "", source.foreign_polls === undefined ? "n/a" : grouped(source.foreign_polls)));
      return row;
    }));
    const cpus = all.flatMap((guard) => guard.cpus).filter((cpu) => cpu.budget_used !== undefined);
    $("budget").textContent = cpus.slice(0, 8).map((cpu) => {
      const pauses = cpu.sleeps.feedback || 0;
      const waits = cpu.sleeps.budget || 0;
      return `CPU ${cpu.cpu} uses ${percent(cpu.budget_used)} of its budget, ${grouped(pauses)} pauses, ${grouped(waits)} waits for budget`;
    }).join("; ");
  }

  function accepts(s) {
    const groups = (s.accepts || []).flatMap((accept) => accept.groups);
    $("accept").hidden = !groups.length;
    $("workers").replaceChildren(...groups.flatMap((group) => group.workers.map((worker) => [group, worker])).slice(0, 64)
      .map(([group, worker]) => {
        const row = html("tr");
        const does = worker.stalled ? "stalled" : worker.does;
        row.append(html("td", "", worker.tid === null ? "?" : String(worker.tid)), html("td", "dim", group.address),
          html("td", "", grouped(worker.waiting)),
          html("td", "", worker.oldest_ms === undefined ? "" : time(worker.oldest_ms * 1e3)),
          html("td", "", worker.placed ? percent(worker.affine / worker.placed) : ""),
          html("td", worker.stalled ? "lost" : "", does), html("td", "", worker.core === null ? "?" : String(worker.core)));
        return row;
      }));
    $("placed").textContent = groups.map((group) => {
      const chosen = Object.entries(group.chosen || {}).filter(([, n]) => n > 0);
      const why = chosen.map(([name, n]) => `${grouped(n)} ${name.replace("_", " ")}`).join(", ");
      return `${group.address} ${group.server}: ${group.there ? why || "no connection" : "its listeners are gone"}`;
    }).join("; ");
  }

  const FROM = {
    softirq: "raised until it runs",
    backlog: "queued for a CPU until handed up",
    stack: "handed up until in its socket",
    socket: "until its program has it",
    whole: "stack and socket",
    tcp: "handed up until read to its end",
    wakeup: "its reader woken until it runs",
  };

  function time(us) {
    if (us < 1e3) return us.toFixed(us < 10 ? 1 : 0) + " µs";
    return us < 1e6 ? (us / 1e3).toFixed(us < 1e4 ? 2 : 1) + " ms" : (us / 1e6).toFixed(2) + " s";
  }

  /// From the median to the 99th percentile, and the longest, on seven powers of ten.
  function reach(wait) {
    const at = (us) => Math.min(Math.max(Math.log10(Math.max(us, 1)) / 7, 0), 1) * 100;
    const made = html("span", "bar reach"), piece = html("i", "flow"), most = html("i", "most");
    piece.style.left = at(wait.p50_us) + "%";
    piece.style.width = Math.max(at(wait.p99_us) - at(wait.p50_us), 1) + "%";
    most.style.left = `min(${at(wait.max_us)}%, 100% - 2px)`;
    made.append(piece, most);
    made.title = `half wait at most ${time(wait.p50_us)}, all but a hundredth ${time(wait.p99_us)}, the longest ${time(wait.max_us)}`;
    return made;
  }

  function probes(s) {
    $("probes").hidden = !s.probes;
    if (!s.probes) return;
    const p = s.probes;
    $("waits").replaceChildren(...p.waits.map((wait) => {
      const row = html("tr"), level = html("td", "level");
      level.append(meter(reach(wait)));
      row.append(html("td", "", wait.of), html("td", "dim", FROM[wait.of] || ""), level, html("td", "", time(wait.p50_us)),
        html("td", "", time(wait.p99_us)), html("td", "", time(wait.max_us)), html("td", "", grouped(wait.samples)));
      return row;
    }));
    const list = (map) => Object.entries(map || {}).sort((a, b) => b[1] - a[1]).slice(0, 8).map(([why, n]) => `${grouped(n)} ${why}`).join(", ");
    const parts = [`dropped, by the kernel's reason: ${list(p.drops) || "nothing"}`];
    if (list(p.unplaced)) parts.push(`here or in another network namespace: ${list(p.unplaced)}`);
    if (!p.waits.length) parts.push("no packet was followed in this interval");
    if (p.lost) parts.push(`${grouped(p.lost)} samples not followed: too many on the way`);
    if (p.missed) parts.push(`${grouped(p.missed)} runs of probes left out by the kernel`);
    $("reasons").textContent = parts.join("; ");
  }

  function ledger(s) {
    const l = s.ledger;
    const list = (map) => Object.entries(map).map(([what, n]) => `${grouped(n)} ${what}`).join(", ") || "none";
    const drops = Draw.losses(l.drops);
    const lost = html("span", total(drops) ? "lost" : "", list(drops));
    $("sum").replaceChildren(`${grouped(l.offered)} packets offered = delivered: ${list(l.delivered)}; lost: `, lost,
      `; shed: ${grouped(l.drops.shed ?? 0)}; ${grouped(l.in_flight)} more in queues`);
    $("rest").textContent = `unaccounted ${grouped(l.unaccounted)}, known to ±${grouped(l.skew)}; ${grouped(l.sent)} sent`;
  }

  function notes(s) {
    const lines = Object.entries(s.skipped).map(([what, n]) => `${n} ${what} vanished, were too slow or could not be parsed`).concat(s.missing);
    $("notes").replaceChildren(...lines.map((text) => html("li", "", text)));
  }

  // Span of the curves, and theme.

  function spanText() {
    const zoom = Draw.zoomed();
    $("span-text").textContent = zoom
      ? `${clock(zoom[0])} to ${clock(zoom[1])}; double click: back to now`
      : "drag in a chart to look closer";
    document.querySelectorAll("#span button").forEach((button) =>
      button.setAttribute("aria-pressed", String(!zoom && Number(button.dataset.span) === Draw.span())));
  }

  document.querySelectorAll("#span button").forEach((button) => (button.onclick = () => {
    Draw.setSpan(Number(button.dataset.span));
    Draw.curves(points);
    spanText();
  }));
  Draw.whenZoomed(() => {
    Draw.curves(points);
    spanText();
  });

  const THEMES = ["", "dark", "light"];
  function theme(word) {
    if (word) document.documentElement.dataset.theme = word;
    else delete document.documentElement.dataset.theme;
    $("theme").textContent = `theme: ${word || "system"}`;
    show();
  }
  let chosen = "";
  try {
    chosen = localStorage.getItem("theme") || "";
  } catch {
    // A browser that keeps nothing: the theme is that of the system.
  }
  $("theme").onclick = () => {
    chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
    try {
      localStorage.setItem("theme", chosen);
    } catch {
      // As above.
    }
    theme(chosen);
  };
  matchMedia("(prefers-color-scheme: light)").addEventListener("change", show);
  addEventListener("resize", () => {
    Draw.resize();
    show();
  });

  theme(THEMES.includes(chosen) ? chosen : "");
  spanText();
  connect();
})();
