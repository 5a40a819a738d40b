// Draws the workers of a page made by page.py. Names come from users' programs: they are only ever drawn, or set as text.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const canvas = document.getElementById("gantt");
const shown = document.getElementById("shown");
const context = canvas.getContext("2d");
const ROW = 26, LEFT = 90, BOTTOM = 20, LETTER = 7;
const WHOLE = Math.max(data.span, 1);
let from = 0, to = WHOLE;

const width = () => canvas.clientWidth - LEFT;
const x = (ns) => LEFT + ((ns - from) / (to - from)) * width();
const time = (ns) => ns >= 1e6 ? (ns / 1e6).toFixed(3) + " ms" : (ns / 1e3).toFixed(2) + " us";

function draw() {
  const scale = window.devicePixelRatio || 1;
  const height = data.rows.length * ROW + BOTTOM;
  canvas.style.height = height + "px";
  canvas.width = canvas.clientWidth * scale;
  canvas.height = height * scale;
  context.scale(scale, scale);
  context.font = "12px system-ui, sans-serif";
  context.fillStyle = "#222";
  data.rows.forEach((name, row) => context.fillText(name, 4, row * ROW + 17, LEFT - 8));
  context.save();
  context.beginPath();
  context.rect(LEFT, 0, width(), height);
  context.clip();
  for (const [row, begin, end] of data.gaps) {
    if (end < from || begin > to) continue;
    context.fillStyle = "#eee";
    context.fillRect(x(begin), row * ROW + 10, x(end) - x(begin), 6);
  }
  for (const [row, begin, end, op, , , critical] of data.tiles) {
    if (end < from || begin > to) continue;
    const wide = Math.max(x(end) - x(begin), 0.5);
    context.fillStyle = `hsl(${(op * 137.5) % 360} 60% 60%)`;
    context.fillRect(x(begin), row * ROW + 3, wide, 17);
    if (critical) {
      context.fillStyle = "#c00";
      context.fillRect(x(begin), row * ROW + 21, wide, 3);
    }
    if (wide > 60) {
      context.fillStyle = "#000";
      context.fillText(data.ops[op].slice(0, Math.floor((wide - 6) / LETTER)), x(begin) + 3, row * ROW + 16, wide - 6);
    }
  }
  context.restore();
  context.fillStyle = "#222";
  for (let tick = 0; tick <= 4; ++tick) {
    const at = from + (tick / 4) * (to - from);
    context.textAlign = tick === 4 ? "right" : tick === 0 ? "left" : "center";
    context.fillText(time(at), x(at), height - 5);
  }
  context.textAlign = "left";
}

function under(event) {
  const box = canvas.getBoundingClientRect();
  const row = Math.floor((event.clientY - box.top) / ROW);
  const at = from + ((event.clientX - box.left - LEFT) / width()) * (to - from);
  const holds = (item) => item[0] === row && item[1] <= at && at < item[2];
  const tile = data.tiles.find(holds);
  if (tile) {
    return `${data.ops[tile[3]]} tile ${tile[4]} [${tile[5]}]\nfrom ${time(tile[1])}, takes ${time(tile[2] - tile[1])}` +
      (tile[6] ? ", on the critical path" : "");
  }
  const gap = data.gaps.find(holds);
  return gap ? `idle: ${gap[3]}\nfrom ${time(gap[1])}, takes ${time(gap[2] - gap[1])}` : "";
}

function show(begin, end) {
  const span = Math.min(Math.max(end - begin, 10), WHOLE);
  from = Math.min(Math.max(begin, 0), WHOLE - span);
  to = from + span;
  draw();
}

let dragged = null;
canvas.addEventListener("mousedown", (event) => { dragged = { at: event.clientX, from, to }; });
window.addEventListener("mouseup", () => { dragged = null; });
canvas.addEventListener("mousemove", (event) => {
  if (dragged) {
    const moved = ((event.clientX - dragged.at) / width()) * (dragged.to - dragged.from);
    show(dragged.from - moved, dragged.to - moved);
  }
  shown.textContent = under(event);
});
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const factor = event.deltaY > 0 ? 1.25 : 0.8;
  const at = from + ((event.clientX - canvas.getBoundingClientRect().left - LEFT) / width()) * (to - from);
  show(at - (at - from) * factor, at + (to - at) * factor);
}, { passive: false });
window.addEventListener("resize", draw);
draw();
