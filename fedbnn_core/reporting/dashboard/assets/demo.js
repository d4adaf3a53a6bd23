"use strict";
// Draw or pick an image, ask the server what it is, show classes, latency and bits.

const about = JSON.parse(document.getElementById("data").textContent);
const {channels, height, width} = about;
const byId = (id) => document.getElementById(id);
const pad = byId("pad"), pen = pad.getContext("2d", {willReadFrequently: true});
// The drawing is finer than the model's input, so that strokes come out smooth.
const FINE = Math.max(Math.round(320 / Math.max(width, height)), 1);
let pixels = null, label = null, asked = 0, drawing = null;

function decode(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

// Grey or colour bytes, rows first, as a canvas picture.
function picture(bytes, wide, high, depth) {
  const image = new ImageData(wide, high);
  for (let i = 0; i < wide * high; i += 1) {
    for (let c = 0; c < 3; c += 1) image.data[4 * i + c] = bytes[i * depth + (depth === 3 ? c : 0)];
    image.data[4 * i + 3] = 255;
  }
  return image;
}

function small(image) {
  const canvas = el("canvas", {width: image.width, height: image.height});
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// Take an image, with its true class if that is known.
function setPixels(bytes, truth) {
  pixels = bytes;
  label = truth;
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small(picture(bytes, width, height, channels)), 0, 0, pad.width, pad.height);
  classify();
}

// What the model gets of the drawing or of a picture file.
function sample(source) {
  const canvas = el("canvas", {width, height}), thin = canvas.getContext("2d", {willReadFrequently: true});
  thin.imageSmoothingQuality = "high";
  thin.drawImage(source, 0, 0, width, height);
  const {data} = thin.getImageData(0, 0, width, height), bytes = new Uint8Array(width * height * channels);
  const swap = byId("invert").checked && source !== pad;
  for (let i = 0; i < width * height; i += 1) {
    const [r, g, b] = data.subarray(4 * i, 4 * i + 3);
    const values = channels === 3 ? [r, g, b] : [Math.round((r * 19595 + g * 38470 + b * 7471) / 65536)];
    values.forEach((v, c) => { bytes[i * channels + c] = swap ? 255 - v : v; });
  }
  return bytes;
}

async function classify() {
  const turn = asked += 1;
  let answer;
  try {
    const response = await fetch("api/demo/classify", {method: "POST", body: pixels});
    if (!response.ok) throw new Error(String(response.status));
    answer = await response.json();
  } catch {
    byId("answer").textContent = "No answer from the server.";
    return;
  }
  // A later drawing has been asked for meanwhile.
  if (turn === asked) show(answer);
}

function show(answer) {
  byId("answer").textContent = answer.classes[0].name;
  byId("answer").dataset.turn = asked;
  const right = label === answer.classes[0].name;
  byId("truth").textContent = label === null ? "" : right ? "Right: that is what the label says." : `Wrong: the label says ${label}.`;
  byId("truth").classList.toggle("wrong", label !== null && !right);
  byId("classes").replaceChildren(...answer.classes.slice(0, 5).map(({name, probability}) => el("li", {},
    el("span", {}, name), el("div", {class: "track", "aria-hidden": "true"}, el("div", {class: "share", style: {width: `${100 * probability}%`}})),
    el("span", {class: "num"}, `${(100 * probability).toFixed(1)} %`))));
  byId("latency").textContent = `${answer.latency_ms < 10 ? answer.latency_ms.toFixed(3) : answer.latency_ms.toFixed(1)} ms for one image, median of 9 runs on one thread, kernel ${answer.kernel}`;
  const maps = [];
  if (answer.input_bits) maps.push(bitFigure(answer.input_bits, null, "what it sees"));
  for (let c = 0; c < answer.bits.channels; c += 1) maps.push(bitFigure(answer.bits, c, null));
  byId("maps").replaceChildren(...maps);
}

// One channel of packed bits; several input channels are shown as red, green and blue.
function bitFigure(bits, channel, caption) {
  const bytes = bits.raw || (bits.raw = decode(bits.data)), area = bits.width * bits.height;
  const at = (c, i) => (bytes[(c * area + i) >> 3] >> ((c * area + i) & 7)) & 1;
  const depth = channel === null && bits.channels === 3 ? 3 : 1;
  const shades = new Uint8Array(area * depth);
  let ones = 0;
  for (let i = 0; i < area; i += 1) {
    for (let c = 0; c < depth; c += 1) shades[i * depth + c] = at(channel === null ? c : channel, i) ? 235 : 20;
    ones += at(channel === null ? 0 : channel, i);
  }
  const label = channel === null ? "Input bits" : `Channel ${channel}: ${ones} of ${area} dots are +1`;
  return el("figure", {class: channel === null ? "seen" : null, title: label, role: "img", "aria-label": label}, small(picture(shades, bits.width, bits.height, depth)), caption ? el("figcaption", {}, caption) : null);
}

function clearPad() {
  pen.fillStyle = "#000";
  pen.fillRect(0, 0, pad.width, pad.height);
}

function unpick() {
  document.querySelectorAll("#samples button").forEach((button) => button.setAttribute("aria-pressed", "false"));
}

function drawTo(event) {
  const box = pad.getBoundingClientRect();
  const point = [(event.clientX - box.left) * pad.width / box.width, (event.clientY - box.top) * pad.height / box.height];
  pen.strokeStyle = channels === 3 ? byId("color").value : "#fff";
  pen.lineWidth = byId("brush").value * FINE;
  pen.lineCap = pen.lineJoin = "round";
  pen.beginPath();
  pen.moveTo(...(drawing || point));
  pen.lineTo(...point);
  pen.stroke();
  drawing = point;
}

async function loadSamples(seed) {
  const response = await fetch(`api/demo/samples?seed=${seed}`);
  const {samples} = await response.json();
  byId("samples-section").hidden = samples.length === 0;
  byId("samples").replaceChildren(...samples.map(({pixels: text, label: truth}) => {
    const bytes = decode(text);
    const button = el("button", {type: "button", "aria-pressed": "false", "aria-label": `Test image: ${truth}`, title: truth, onclick: () => {
      unpick();
      button.setAttribute("aria-pressed", "true");
      setPixels(bytes, truth);
    }}, small(picture(bytes, width, height, channels)));
    return button;
  }));
  // Something to look at from the start.
  const first = document.querySelector("#samples button");
  if (first) first.click();
}

pad.width = width * FINE;
pad.height = height * FINE;
byId("color-label").hidden = channels !== 3;
byId("about").textContent = `${about.architecture}, ${format.bytes(about.size_bytes)}, ${about.class_names.length} classes, images of ${width} × ${height} pixels`;
clearPad();
pad.addEventListener("pointerdown", (event) => { pad.setPointerCapture(event.pointerId); drawing = null; unpick(); drawTo(event); });
pad.addEventListener("pointermove", (event) => { if (event.buttons) drawTo(event); });
pad.addEventListener("pointerup", () => { drawing = null; pixels = sample(pad); label = null; classify(); });
byId("clear").addEventListener("click", () => { unpick(); clearPad(); byId("classes").replaceChildren(); byId("maps").replaceChildren(); byId("latency").textContent = ""; byId("truth").textContent = ""; byId("answer").textContent = "Nothing to look at yet."; asked += 1; });
byId("file").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  event.target.value = "";
  if (!file) return;
  try { unpick(); setPixels(sample(await createImageBitmap(file)), null); } catch { byId("answer").textContent = "That file is no picture this browser can read."; }
});
// The picture shown is swapped at once; one that is loaded later, when it comes.
byId("invert").addEventListener("change", () => { if (pixels) setPixels(pixels.map((v) => 255 - v), label); });
let seed = 0;
byId("more").addEventListener("click", () => { seed += 1; loadSamples(seed); });
loadSamples(seed);
