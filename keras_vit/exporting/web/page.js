// Runs the model of a page that keras_vit.export wrote. Nothing leaves the
// device: all requests are for the files of this folder.
import * as ort from "./ort.wasm.bundle.min.mjs";

const ROWS = 256; // of a picture, which are resized at once
const get = (id) => document.getElementById(id);
const status = (text) => { get("status").textContent = text; };

export const pictures = []; // of {name, bitmap, input, results}
// One computation at a time, since a session cannot run twice at once.
export let queue = Promise.resolve();
let config, weights, gl;
let size, graphs = {}; // of the chosen image size

// Loads the graphs of the chosen image size. What another one has takes memory.
async function load() {
  for (const graph of Object.values(graphs)) await graph.release();
  graphs = {};
  for (const picture of pictures) picture.input = null, picture.results = {};
  size = config.sizes[get("size").value];
  for (const name of ["columns", "model"]) {
    const file = `${name}-${size.join("x")}.onnx`;
    graphs[name] = await ort.InferenceSession.create(file, {
      executionProviders: ["wasm"],
      externalData: [{ path: "weights.bin", data: weights }],
    });
  }
}

// Returns the model's input. As Pillow and keras_vit do, pictures are turned as
// EXIF says, and colors are not converted by profiles. Pixels are read by WebGL,
// since a 2D canvas loses the colors of transparent pixels.
async function preprocess(bitmap) {
  const { width, height } = bitmap, shape = [height, size[1], config.channels];
  const texture = gl.createTexture();
  gl.bindTexture(gl.TEXTURE_2D, texture);
  gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, bitmap);
  gl.framebufferTexture2D(
    gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, texture, 0);
  const values = new Float32Array(height * shape[1] * shape[2]);
  for (let y = 0; y < height; y += ROWS) {
    const rows = Math.min(ROWS, height - y);
    const data = new Uint8Array(rows * width * 4);
    gl.readPixels(0, y, width, rows, gl.RGBA, gl.UNSIGNED_BYTE, data);
    const part = new ort.Tensor("uint8", data, [rows, width, 4]);
    const { picture } = await graphs.columns.run({ part });
    values.set(picture.data, y * shape[1] * shape[2]);
  }
  // Pixels that the graphics memory could not hold have been read as black.
  const held = gl.checkFramebufferStatus(gl.FRAMEBUFFER);
  gl.deleteTexture(texture);
  if (held !== gl.FRAMEBUFFER_COMPLETE) {
    const limit = gl.getParameter(gl.MAX_TEXTURE_SIZE);
    throw new Error(`the graphics memory cannot hold ${width} × ${height} `
      + `pixels. Reload the page, and choose fewer, at most ${limit} a side.`);
  }
  return new ort.Tensor("float32", values, shape);
}

// Returns what the model computes for a picture: relevance is that for the
// target, an index of a class or, for an encoder, of another picture. "" is the
// best class, or what the encoder computes for the picture.
async function analyze(picture, target = "") {
  if (!picture.results[target]) {
    picture.input ??= await preprocess(picture.bitmap);
    const direction = new Float32Array(config.outputs);
    if (target && config.labels) direction[target] = 1;
    else if (target) {
      direction.set((await analyze(pictures[target])).output.data);
    }
    picture.results[target] = await graphs.model.run({
      picture: picture.input,
      direction: new ort.Tensor("float32", direction, [1, config.outputs]),
    });
  }
  return picture.results[target];
}

// Returns {name, index, score} of the best classes or, for an encoder, of the
// other pictures with the most similar features.
async function rank(picture) {
  const output = (await analyze(picture)).output.data;
  const found = [];
  if (config.labels) {
    config.labels.forEach(
      (name, index) => found.push({ name, index, score: output[index] }));
  } else {
    const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
    for (const [index, other] of pictures.entries()) {
      if (other === picture) continue;
      const y = (await analyze(other)).output.data;
      const score = dot(y, output) / Math.sqrt(dot(y, y) * dot(output, output));
      found.push({ name: other.name, index, score });
    }
  }
  return found.sort((a, b) => b.score - a.score).slice(0, 5);
}

// Draws a picture, and a map over it from its 2nd to its 98th percentile.
function draw(canvas, bitmap, side, map, [rows, columns] = []) {
  const scale = side / Math.max(bitmap.width, bitmap.height);
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = scale < 1;
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  if (!map) return;
  const sorted = Float32Array.from(map).sort(), last = sorted.length - 1;
  const low = sorted[Math.floor(0.02 * last)];
  const range = sorted[Math.ceil(0.98 * last)] - low || 1;
  const heat = new ImageData(columns, rows);
  map.forEach((x, i) => {
    x = Math.min(1, Math.max(0, (x - low) / range)); // dark, none, yellow
    heat.data.set(x < 0.5 ? [15, 10, 60, 230 - 460 * x]
      : [255, 210, 0, 340 * (x - 0.5)], 4 * i);
  });
  const layer = new OffscreenCanvas(columns, rows);
  layer.getContext("2d").putImageData(heat, 0, 0);
  context.imageSmoothingEnabled = true;
  context.drawImage(layer, 0, 0, canvas.width, canvas.height);
}

// Offers options of [text, value], and keeps the choice if it is among them.
function offer(id, options) {
  const chosen = get(id).value;
  get(id).replaceChildren(...options.map(
    ([text, value]) => new Option(text, value, false, value === chosen)));
}

async function update() {
  const picture = pictures[get("picture").value];
  status(`Computing ${picture.name} …`);
  await new Promise((done) => setTimeout(done, 20)); // the text is shown
  const { data, dims: [blocks, heads, ...grid] } =
    (await analyze(picture)).attention;
  const best = await rank(picture);
  const targets = best.map(({ name, index }) => [name, index]);
  // The default is "", which is computed with the output.
  if (config.labels) targets[0][1] = "";
  else targets.unshift(["all features of the picture", ""]);
  const numbers = (count) => Array.from({ length: count }, (_, i) => i);
  offer("show", [
    ...targets.map(([name, x]) => [`Relevance for ${name}`, `relevance ${x}`]),
    ...numbers(blocks).map((x) =>
      [`Attention of the output in block ${x + 1}`, `attention ${x}`]),
    ["The picture only", "nothing"]]);
  offer("head", numbers(heads).map((x) => [`head ${x + 1}`, `${x}`]));

  const [kind, index] = get("show").value.split(" ");
  let map, caption = get("show").selectedOptions[0].text;
  if (kind === "relevance") {
    map = (await analyze(picture, index)).relevance.data;
  } else if (kind === "attention") {
    const start = index * heads + Number(get("head").value);
    const length = grid[0] * grid[1];
    map = data.slice(start * length, (start + 1) * length);
    caption += `, ${get("head").selectedOptions[0].text}`;
  }
  draw(get("view"), picture.bitmap, 800, map, grid);
  get("caption").textContent = `${picture.name}. ${caption}.`;
  get("head").parentElement.hidden = kind !== "attention";
  const score = (x) => config.labels ? `${(100 * x).toFixed(1)}%`
    : `similarity ${x.toFixed(3)}`;
  get("best").replaceChildren(...best.map((item) => {
    const line = document.createElement("li");
    const meter = document.createElement("meter");
    Object.assign(meter, { value: Math.max(0, item.score), ariaHidden: true });
    line.append(`${item.name}: ${score(item.score)}`, meter);
    if (!config.labels) {
      line.prepend(document.createElement("canvas"));
      draw(line.firstChild, pictures[item.index].bitmap, 96);
    }
    return line;
  }));
  get("result").hidden = false;
  const most = config.labels ? "Most probable in" : "Nearest to";
  status(!best.length ? "Add more pictures to see the nearest."
    : `${most} ${picture.name}: ${best[0].name}, ${score(best[0].score)}.`);
}

function enqueue(work) {
  queue = queue.then(work).catch((error) => {
    status(`This did not work: ${error.message}`);
  });
}

async function add(file) {
  status(`Computing ${file.name} …`);
  const bitmap = await createImageBitmap(file, { premultiplyAlpha: "none",
    imageOrientation: "from-image", colorSpaceConversion: "none" });
  const picture = { name: file.name, bitmap, results: {} };
  await analyze(picture); // one that fails is not compared with others
  const index = pictures.push(picture) - 1;
  get("picture").append(new Option(`${index + 1}: ${file.name}`, index));
  get("picture").value = index;
  await update();
}
const addAll = (files) => [...files].forEach((x) => enqueue(() => add(x)));

enqueue(async () => {
  gl = new OffscreenCanvas(1, 1).getContext("webgl2");
  if (!gl) throw new Error("the browser has no WebGL 2.");
  gl.bindFramebuffer(gl.FRAMEBUFFER, gl.createFramebuffer());
  config = await (await fetch("model.json")).json();
  weights = new Uint8Array(await (await fetch("weights.bin")).arrayBuffer());
  ort.env.logLevel = "error";
  ort.env.wasm.numThreads = 1; // more need headers that few servers send
  offer("size", config.sizes.map((pixels, i) => [pixels.join(" × "), i]));
  if (!config.labels) get("title").textContent = "Nearest of your pictures";
  await load();
  get("controls").onchange = ({ target }) => enqueue(async () => {
    if (target.id === "size") await load();
    await update();
  });
  get("file").disabled = false;
  get("file").onchange = () => addAll(get("file").files);
  addEventListener("paste", (event) => addAll(event.clipboardData.files));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    addAll(event.dataTransfer.files);
  });
  status("Ready. Choose a picture.");
});
