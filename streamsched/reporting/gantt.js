// The Gantt chart of GPUs, on one canvas for each run; all of them show the same stretch and the same rows.
// Data: see gantt.py. Times are seconds from the beginning of a run.
"use strict";
(async () => {
  const root = document.getElementById("gantt");
  if (!root) return;
  const info = document.getElementById("gantt-info");
  const packed = Uint8Array.from(atob(document.getElementById("gantt-data").textContent.trim()), (c) => c.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const { hues, teams, runs } = JSON.parse(await new Response(unpacked).text());

  const MARGIN = { left: 76, bottom: 22, right: 8, top: 2 };
  const SHADES = 3, PREEMPTED = 1, LOST = 2;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const printing = matchMedia("print");
  const isDark = () => dark.matches && !printing.matches;
  const hue = (team) => hues[team % hues.length];
  const colour = (team, shade) =>
    isDark() ? `hsl(${hue(team)} 45% ${38 + 7 * shade}%)` : `hsl(${hue(team)} 52% ${46 + 8 * shade}%)`;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const longest = Math.max(60, ...runs.map((run) => run.length));
  const rows = Math.max(1, ...runs.map((run) => run.gpus.reduce((sum, gpus) => sum + gpus, 0)));
  const view = { t0: 0, t1: longest, r0: 0, r1: rows };
  let lit = -1; // The team that is picked out; -1 for all.

  // One bar for each stretch of neighbouring GPUs of a spell, ordered by colour so that it is set seldom.
  for (const run of runs) {
    run.tops = [];
    let top = 0;
    for (const gpus of run.gpus) { run.tops.push(top); top += gpus; }
    run.rows = top;
    const bars = [];
    let at = 0;
    for (let i = 0; i < run.node.length; i++) {
      at += run.from[i];
      let gpu = 0;
      for (let mask = run.mask[i]; mask; ) {
        while (!(mask & 1)) { mask >>>= 1; gpu++; }
        const first = gpu;
        while (mask & 1) { mask >>>= 1; gpu++; }
        bars.push([at, at + run.for[i], run.protected[i] < 0 ? Infinity : at + run.protected[i],
          run.tops[run.node[i]] + first, gpu - first, run.workload[i], run.end[i], run.node[i]]);
      }
    }
    const key = (bar) => run.team[bar[5]] * SHADES + (bar[5] % SHADES);
    bars.sort((a, b) => key(a) - key(b) || a[0] - b[0]);
    run.bars = bars;
  }

  const hatchOf = (context, ratio) => {
    const size = Math.round(6 * ratio);
    const tile = document.createElement("canvas");
    tile.width = tile.height = size;
    const pen = tile.getContext("2d");
    pen.strokeStyle = isDark() ? "rgb(0 0 0 / .55)" : "rgb(255 255 255 / .7)";
    pen.lineWidth = 1.6 * ratio;
    for (const shift of [-size, 0, size]) {
      pen.beginPath();
      pen.moveTo(shift, size);
      pen.lineTo(shift + size, 0);
      pen.stroke();
    }
    return context.createPattern(tile, "repeat");
  };

  const STEPS = [1, 5, 15, 60, 300, 900, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000];
  const pad = (number) => String(number).padStart(2, "0");
  const clock = (second, step) => {
    const time = new Date(second * 1000);
    const day = `${pad(time.getUTCMonth() + 1)}-${pad(time.getUTCDate())}`;
    const hour = `${pad(time.getUTCHours())}:${pad(time.getUTCMinutes())}`;
    if (step >= 86400) return day;
    return step < 60 ? `${hour}:${pad(time.getUTCSeconds())}` : hour === "00:00" ? day : hour;
  };
  const moment = (second) => new Date(second * 1000).toISOString().slice(0, 19).replace("T", " ");

  const draw = (run) => {
    const canvas = run.canvas, ratio = devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width) return;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    const plot = { x: MARGIN.left, y: MARGIN.top, w: width - MARGIN.left - MARGIN.right, h: height - MARGIN.top - MARGIN.bottom };
    const sx = plot.w / (view.t1 - view.t0), sy = plot.h / (view.r1 - view.r0);
    const x = (second) => plot.x + (second - view.t0) * sx;
    const y = (row) => plot.y + (row - view.r0) * sy;
    pen.scale(ratio, ratio);
    pen.fillStyle = css("--panel");
    pen.fillRect(0, 0, width, height);
    pen.save();
    pen.beginPath();
    pen.rect(plot.x, plot.y, plot.w, plot.h);
    pen.clip();

    pen.fillStyle = css("--out");
    for (const [node, from, to] of run.out) {
      pen.fillRect(x(from), y(run.tops[node]), Math.max(1, (to - from) * sx), run.gpus[node] * sy);
    }
    const seen = run.bars.filter((bar) =>
      bar[0] < view.t1 && bar[1] > view.t0 && bar[3] < view.r1 && bar[3] + bar[4] > view.r0);
    const gap = sy > 5 ? 1 : 0;
    let before = -1;
    for (const bar of seen) {
      const team = run.team[bar[5]], key = team * SHADES + (bar[5] % SHADES);
      if (key !== before) {
        before = key;
        pen.fillStyle = colour(team, bar[5] % SHADES);
        pen.globalAlpha = lit < 0 || lit === team ? 1 : 0.13;
      }
      pen.fillRect(x(bar[0]), y(bar[3]), Math.max(0.6, (bar[1] - bar[0]) * sx), bar[4] * sy - gap);
    }
    pen.globalAlpha = 1;
    pen.fillStyle = hatchOf(pen, 1);
    for (const bar of seen) {
      if (bar[2] >= bar[1] || (lit >= 0 && lit !== run.team[bar[5]])) continue;
      const from = Math.max(view.t0, bar[2]), wide = (Math.min(view.t1, bar[1]) - from) * sx;
      if (wide > 0.7) pen.fillRect(x(from), y(bar[3]), wide, bar[4] * sy - gap);
    }
    for (const bar of seen) {
      if (bar[6] === PREEMPTED && bar[1] >= view.t0 && bar[1] <= view.t1) {
        const wide = Math.min(3, Math.max(1, (bar[1] - bar[0]) * sx));
        if (sy > 2) { pen.fillStyle = css("--paper"); pen.fillRect(x(bar[1]) - wide - 1, y(bar[3]), 1, bar[4] * sy - gap); }
        pen.fillStyle = css("--edge");
        pen.fillRect(x(bar[1]) - wide, y(bar[3]), wide, bar[4] * sy - gap);
      }
    }
    if (sy * 8 > 4) { // Lines between nodes, once there is room for them.
      pen.fillStyle = css("--paper");
      for (const top of run.tops) if (top > view.r0 && top < view.r1) pen.fillRect(plot.x, y(top) - 0.5, plot.w, 1);
    }
    if (document.activeElement === canvas) {
      const mid = { x: plot.x + plot.w / 2, y: plot.y + plot.h / 2 };
      pen.strokeStyle = css("--ink");
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(mid.x - 9, mid.y); pen.lineTo(mid.x + 9, mid.y);
      pen.moveTo(mid.x, mid.y - 9); pen.lineTo(mid.x, mid.y + 9);
      pen.stroke();
    }
    pen.restore();

    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = css("--ink");
    pen.strokeStyle = css("--line");
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    let below = -Infinity;
    for (let node = 0; node < run.nodes.length; node++) {
      const middle = y(run.tops[node] + run.gpus[node] / 2);
      if (middle < plot.y + 5 || middle > plot.y + plot.h - 5 || middle - below < 13) continue;
      below = middle;
      const name = run.nodes[node];
      pen.fillText(name.length > 12 ? `…${name.slice(-11)}` : name, plot.x - 5, middle);
    }
    pen.textBaseline = "alphabetic";
    pen.textAlign = "center";
    const step = STEPS.find((seconds) => seconds * sx >= 58) || STEPS[STEPS.length - 1];
    for (let tick = Math.ceil((run.since + view.t0) / step) * step; tick <= run.since + view.t1; tick += step) {
      const at = x(tick - run.since);
      pen.fillRect(at, plot.y + plot.h, 1, 4);
      if (at > plot.x + 12 && at < plot.x + plot.w - 14) pen.fillText(clock(tick, step), at, height - 6);
    }
    pen.strokeRect(plot.x - 0.5, plot.y - 0.5, plot.w + 1, plot.h + 1);
    canvas.dataset.view = [view.t0, view.t1, view.r0, view.r1].map(Math.round).join(" ");
  };

  let due = 0;
  const redraw = () => { due = due || requestAnimationFrame(() => { due = 0; runs.forEach(draw); }); };

  const clamp = (low, high, from, to, least) => {
    const span = Math.min(to - from, Math.max(least, high - low));
    const begin = Math.min(Math.max(low, from), to - span);
    return [begin, begin + span];
  };
  const show = (t0, t1, r0, r1) => {
    [view.t0, view.t1] = clamp(t0, t1, 0, longest, 60);
    [view.r0, view.r1] = clamp(r0, r1, 0, rows, Math.min(rows, 4));
    redraw();
  };
  const zoomTime = (factor, at = (view.t0 + view.t1) / 2) =>
    show(at - (at - view.t0) * factor, at + (view.t1 - at) * factor, view.r0, view.r1);
  const zoomRows = (factor, at = (view.r0 + view.r1) / 2) =>
    show(view.t0, view.t1, at - (at - view.r0) * factor, at + (view.r1 - at) * factor);
  const pan = (right, down) => {
    const dt = right * (view.t1 - view.t0), dr = down * (view.r1 - view.r0);
    show(view.t0 + dt, view.t1 + dt, view.r0 + dr, view.r1 + dr);
  };

  // What is at a place, in words: the same for the mouse and for the keyboard.
  const told = (run, second, row) => {
    if (second < 0 || second > run.length || row < 0 || row >= run.rows) return "";
    let node = run.tops.findLastIndex((top) => top <= row);
    while (node > 0 && !run.gpus[node]) node--;
    const place = `${moment(run.since + second)} UTC, ${run.nodes[node]}, GPU ${Math.floor(row) - run.tops[node]}: `;
    const bar = run.bars.find((one) => one[0] <= second && second < one[1] && one[3] <= row && row < one[3] + one[4]);
    if (!bar) {
      const out = run.out.some(([which, from, to]) => which === node && from <= second && second < to);
      return place + (out ? "the node takes no work." : "free.");
    }
    const since = `since ${moment(run.since + bar[0])}`;
    const now = bar[2] <= second ? "may be displaced" : "protected";
    const end = bar[6] === PREEMPTED ? "preempted" : bar[6] === LOST ? "lost with its node" : "ended";
    return `${place}${run.workloads[bar[5]]} of ${teams[run.team[bar[5]]]}, ${since}, ${now}; ` +
      `${bar[1] >= run.length ? "still there at the end" : `${end} ${moment(run.since + bar[1])}`}.`;
  };
  const placeOf = (run, event) => {
    const box = run.canvas.getBoundingClientRect();
    const w = box.width - MARGIN.left - MARGIN.right, h = box.height - MARGIN.top - MARGIN.bottom;
    return {
      second: view.t0 + ((event.clientX - box.left - MARGIN.left) / w) * (view.t1 - view.t0),
      row: view.r0 + ((event.clientY - box.top - MARGIN.top) / h) * (view.r1 - view.r0), w, h,
    };
  };
  const tellMiddle = (run) => { info.textContent = told(run, (view.t0 + view.t1) / 2, (view.r0 + view.r1) / 2); };

  const ACTIONS = {
    "+": () => zoomTime(0.6), "-": () => zoomTime(1 / 0.6), "]": () => zoomRows(0.6), "[": () => zoomRows(1 / 0.6),
    ArrowLeft: () => pan(-0.15, 0), ArrowRight: () => pan(0.15, 0), ArrowUp: () => pan(0, -0.15), ArrowDown: () => pan(0, 0.15),
    "0": () => show(0, longest, 0, rows),
  };
  const ALIASES = { "=": "+", _: "-", Home: "0", PageUp: "[", PageDown: "]" };

  for (const run of runs) {
    const canvas = run.canvas = root.querySelectorAll("canvas")[runs.indexOf(run)];
    let held = null;
    canvas.addEventListener("keydown", (event) => {
      const action = ACTIONS[ALIASES[event.key] || event.key];
      if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      action();
      tellMiddle(run);
    });
    canvas.addEventListener("focus", () => { redraw(); tellMiddle(run); });
    canvas.addEventListener("blur", redraw);
    canvas.addEventListener("wheel", (event) => {
      if (document.activeElement !== canvas && !event.ctrlKey) return; // The page scrolls.
      event.preventDefault();
      const at = placeOf(run, event), factor = Math.exp(Math.max(-60, Math.min(60, event.deltaY || event.deltaX)) / 250);
      event.shiftKey ? zoomRows(factor, at.row) : zoomTime(factor, at.second);
    }, { passive: false });
    canvas.addEventListener("dblclick", (event) => {
      const at = placeOf(run, event);
      zoomTime(0.4, at.second);
      zoomRows(0.4, at.row);
    });
    canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.clientX, y: event.clientY, ...view };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const at = placeOf(run, event);
      if (!held) { info.textContent = told(run, at.second, at.row); return; }
      const dt = ((held.x - event.clientX) / at.w) * (held.t1 - held.t0);
      const dr = event.pointerType === "touch" ? 0 : ((held.y - event.clientY) / at.h) * (held.r1 - held.r0);
      show(held.t0 + dt, held.t1 + dt, held.r0 + dr, held.r1 + dr);
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { held = null; });
  }
  for (const button of root.querySelectorAll("button[data-key]")) {
    button.addEventListener("click", () => { ACTIONS[button.dataset.key](); tellMiddle(runs[0]); });
  }
  const legend = root.querySelector(".teams");
  const paint = () => {
    for (const swatch of legend.querySelectorAll("i")) swatch.style.background = colour(+swatch.dataset.team, 1);
  };
  teams.forEach((team, number) => {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-pressed", "false");
    const swatch = document.createElement("i");
    swatch.dataset.team = number;
    button.append(swatch, team);
    button.addEventListener("click", () => {
      lit = lit === number ? -1 : number;
      legend.querySelectorAll("button").forEach((other, place) => other.setAttribute("aria-pressed", String(place === lit)));
      redraw();
    });
    legend.append(button);
  });
  const repaint = () => { paint(); runs.forEach(draw); };
  dark.addEventListener("change", repaint);
  printing.addEventListener("change", repaint);
  new ResizeObserver(redraw).observe(root);
  paint();
  redraw();
  root.dataset.ready = "yes";
})();
