// Runs the model of a page that keras_vit.export wrote. Nothing leaves the
// device: all requests are for the files of this folder.
import * as ort from "./ort.wasm.bundle.min.mjs";

const ROWS = 256; // of a picture, which are resized at once
const get = (id) => document.getElementById(id);
const status = (text) => { get("status").textContent = text; };

export const pictures = []; // of {name, bitmap, inputs, results}
let config, weights, gl;
let sessions = {}; // by file name, of one size

async function run(graph, feeds) {
  const size = config.sizes[get("size").value].join("x");
  const file = `${graph}-${size}.onnx`;
  sessions[file] ??= await ort.InferenceSession.create(file, {
    executionProviders: ["wasm"],
    externalData: [{ path: "weights.bin", data: weights }],
  });
  return sessions[file].run(feeds);
}

// Returns the model's input. As Pillow and keras_vit do, pictures are turned as
// EXIF says, and colors are not converted by profiles. Pixels are read by WebGL,
// since a 2D canvas loses the colors of transparent pixels.
async function preprocess(bitmap) {
  const { width, height } = bitmap;
  const texture = gl.createTexture();
  gl.pixelStorei(gl.UNPACK_COLORSPACE_CONVERSION_WEBGL, gl.NONE);
  gl.bindTexture(gl.TEXTURE_2D, texture);
  gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, bitmap);
  gl.framebufferTexture2D(
    gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, texture, 0);
  const shape = [height, config.sizes[get("size").value][1], config.channels];
  const values = new Float32Array(shape[0] * shape[1] * shape[2]);
  for (let y = 0; y < height; y += ROWS) {
    const rows = Math.min(ROWS, height - y);
    const data = new Uint8Array(rows * width * 4);
    gl.readPixels(0, y, width, rows, gl.RGBA, gl.UNSIGNED_BYTE, data);
    const part = new ort.Tensor("uint8", data, [rows, width, 4]);
    const { picture } = await run("columns", { part });
    values.set(picture.data, y * shape[1] * shape[2]);
  }
  // Without memory for the picture, its pixels would be read as black.
  const held = gl.checkFramebufferStatus(gl.FRAMEBUFFER);
  gl.deleteTexture(texture);
  if (held !== gl.FRAMEBUFFER_COMPLETE) {
    throw new Error("the graphics memory cannot hold the picture. Reload the "
      + "page, and choose a smaller one.");
  }
  return new ort.Tensor("float32", values, shape);
}

// Returns what the model computes for a picture: relevance is that for the
// target, an index of a class or, for an encoder, of another picture. "" is the
// best class, or what the encoder computes for the picture.
async function analyze(picture, target = "") {
  const size = get("size").value, key = `${size} ${target}`;
  if (!picture.results[key]) {
    const direction = new Float32Array(config.outputs);
    if (target && config.labels) direction[target] = 1;
    else if (target) {
      direction.set((await analyze(pictures[target])).output.data);
    }
    picture.inputs[size] ??= await preprocess(picture.bitmap);
    picture.results[key] = await run("model", {
      picture: picture.inputs[size],
      direction: new ort.Tensor("float32", direction, [1, config.outputs]),
    });
  }
  return picture.results[key];
}

// Returns {name, score, index} of the best classes or, for an encoder, of the
// pictures with the most similar features.
async function rank(picture) {
  const output = (await analyze(picture)).output.data;
  let found = [];
  if (config.labels) {
    found = config.labels.map((name, i) => ({ name, score: output[i] }));
  } else {
    const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
    for (const other of pictures) {
      const y = (await analyze(other)).output.data;
      const score = dot(y, output) / Math.sqrt(dot(y, y) * dot(output, output));
      found.push({ name: other.name, score, bitmap: other.bitmap });
    }
  }
  found.forEach((item, index) => { item.index = index; });
  found = found.filter(({ bitmap }) => bitmap !== picture.bitmap);
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

// Returns the map that the controls ask for, and its caption.
async function chosenMap(picture) {
  const show = get("show").value, text = (id) => get(id).selectedOptions[0].text;
  if (show === "nothing") return [null, "The picture only"];
  if (show === "relevance") {
    const { relevance } = await analyze(picture, get("target").value);
    return [relevance.data, `Relevance for ${text("target")}`];
  }
  const { data, dims: [, heads, rows, columns] } =
    (await analyze(picture)).attention;
  const length = rows * columns;
  const start = (get("block").value * heads + Number(get("head").value)) * length;
  return [data.slice(start, start + length),
    `Attention of the output in ${text("block")}, ${text("head")}`];
}

function fill(id, options) {
  get(id).replaceChildren(
    ...options.map(([text, value]) => new Option(text, value)));
}

async function update(event) {
  const picture = pictures[get("picture").value];
  status(`Computing ${picture.name} …`);
  await new Promise((done) => setTimeout(done, 20)); // the text is shown
  const { dims } = (await analyze(picture)).attention;
  if (!get("block").length) {
    const names = (text, length) =>
      Array.from({ length }, (_, i) => [`${text} ${i + 1}`, i]);
    fill("block", names("block", dims[0]));
    fill("head", names("head", dims[1]));
    get("block").value = dims[0] - 1;
  }
  const best = await rank(picture);
  const score = (x) => config.labels ? `${(100 * x).toFixed(1)} %`
    : `similarity ${x.toFixed(3)}`;
  if (!event || ["picture", "size"].includes(event.target.id)) {
    const own = config.labels ? [] : [["all features of the picture", ""]];
    // The first class is the default: "" is computed with the output.
    fill("target", [...own, ...best.map(({ name, index }, i) =>
      [name, config.labels && i === 0 ? "" : index])]);
  }
  const [map, caption] = await chosenMap(picture);
  draw(get("view"), picture.bitmap, 800, map, dims.slice(2));
  get("view").ariaLabel = `${picture.name}. ${caption}`;
  get("caption").textContent = `${caption}.`;
  const show = get("show").value;
  get("target").parentElement.hidden = show !== "relevance";
  get("block").parentElement.hidden = show !== "attention";
  get("head").parentElement.hidden = show !== "attention";
  get("best").replaceChildren(...best.map((item) => {
    const line = document.createElement("li");
    const meter = document.createElement("meter");
    meter.value = Math.max(0, item.score);
    meter.ariaHidden = true;
    line.append(`${item.name}: ${score(item.score)}`, meter);
    if (item.bitmap) {
      line.prepend(document.createElement("canvas"));
      draw(line.firstChild, item.bitmap, 96);
    }
    return line;
  }));
  get("result").hidden = false;
  status(best.length ? `${picture.name}: ${config.labels ? "" : "nearest is "}`
    + `${best[0].name}, ${score(best[0].score)}.`
    : "Add more pictures to see the nearest.");
}

// One computation at a time, since a session cannot run twice at once.
let queue = Promise.resolve();
function enqueue(work) {
  document.body.dataset.state = "busy";
  const mine = queue = queue.then(work).catch((error) => {
    status(`This did not work: ${error.message}`);
  }).then(() => {
    if (queue === mine) document.body.dataset.state = "ready";
  });
}

export function add(files) {
  for (const file of files) {
    enqueue(async () => {
      status(`Computing ${file.name} …`);
      const bitmap = await createImageBitmap(file, {
        imageOrientation: "from-image", premultiplyAlpha: "none",
        colorSpaceConversion: "none" });
      const limit = gl.getParameter(gl.MAX_TEXTURE_SIZE);
      if (Math.max(bitmap.width, bitmap.height) > limit) {
        throw new Error(`${file.name} is wider or taller than ${limit} pixels.`);
      }
      const picture = { name: file.name, bitmap, inputs: {}, results: {} };
      await analyze(picture); // one that fails is not compared with others
      const index = pictures.push(picture) - 1;
      get("picture").append(new Option(`${index + 1}: ${file.name}`, index));
      get("picture").value = index;
      await update();
    });
  }
}

async function start() {
  gl = new OffscreenCanvas(1, 1).getContext("webgl2");
  if (!gl) throw new Error("the browser has no WebGL 2.");
  gl.bindFramebuffer(gl.FRAMEBUFFER, gl.createFramebuffer());
  config = await (await fetch("model.json")).json();
  weights = new Uint8Array(await (await fetch("weights.bin")).arrayBuffer());
  ort.env.logLevel = "error";
  ort.env.wasm.numThreads = 1; // more need headers that few servers send
  fill("size", config.sizes.map((size, i) => [size.join(" × "), i]));
  if (!config.labels) get("title").textContent = "Nearest of your pictures";
  get("controls").onchange = (event) => enqueue(async () => {
    if (event.target.id === "size") { // the other size's take memory
      await Promise.all(Object.values(sessions).map((x) => x.release()));
      sessions = {};
    }
    await update(event);
  });
  get("file").disabled = false;
  get("file").onchange = () => add([...get("file").files]);
  addEventListener("paste", (event) => add([...event.clipboardData.files]));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    add([...event.dataTransfer.files]);
  });
  status("Ready. Choose a picture.");
}

enqueue(start);
