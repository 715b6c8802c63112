"""Other packages that train on photographs, as a program of theirs would."""

import importlib
import json
import pathlib
import tempfile
from typing import Any

BATCH, SIZE = 8, 224
# The packages, and the backends with whose commands they are compared.
BACKENDS = {
    "keras-hub": ("jax", "tensorflow", "torch"),
    "timm": ("torch",),
    "transformers": ("torch",),
    "ultralytics": ("torch",),
}


def train(peer: str, folder: str, steps: int, head: bool) -> float:
    """Trains a ViT-S/16 with random weights on the photographs of a folder, evaluates
    it on a fifth of them, saves it, and returns its accuracy.

    Args:
        peer: String. A package of `BACKENDS`.
        folder: String. A folder with a folder of each class.
        steps: Integer. Steps of 8 photographs.
        head: Boolean. Whether only the head is trained.

    Returns:
        Float. The accuracy.
    """
    function = globals()[f"_{peer.replace('-', '_')}"]
    with tempfile.TemporaryDirectory() as output:
        return function(folder, steps, head, pathlib.Path(output))


def _keras_hub(folder: str, steps: int, head: bool, output: pathlib.Path) -> float:
    import keras
    from benchmarks.contenders import SIZES, keras_hub

    classifier = keras_hub(SIZES["S16"], SIZE, classes=2)
    classifier.backbone.trainable = not head
    classifier.compile(
        keras.optimizers.AdamW(1e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    parts = keras.utils.image_dataset_from_directory(
        folder,
        image_size=(SIZE, SIZE),
        batch_size=BATCH,
        seed=0,
        validation_split=0.2,
        subset="both",
        verbose=False,
    )
    images, test = (part.map(lambda x, y: (x / 127.5 - 1, y)) for part in parts)
    classifier.fit(images.repeat(), steps_per_epoch=steps, validation_data=test)
    classifier.save(output / "model.keras")
    return float(classifier.evaluate(test, return_dict=True)["accuracy"])


def _photographs(folder: str, transform: Any) -> tuple[Any, Any]:
    """Returns the training and the test photographs, as datasets of PyTorch."""
    import torch.utils.data

    dataset = importlib.import_module("timm.data").ImageDataset(
        folder, transform=transform
    )
    parts = torch.utils.data.random_split(dataset, [0.8, 0.2])
    return parts[0], parts[1]


def _timm(folder: str, steps: int, head: bool, output: pathlib.Path) -> float:
    import timm
    import torch

    model = timm.create_model("vit_small_patch16_224", num_classes=2)
    transform = importlib.import_module("timm.data").create_transform(
        SIZE, is_training=True
    )
    images, test = (
        torch.utils.data.DataLoader(
            part, BATCH, shuffle=True, num_workers=2, drop_last=True
        )
        for part in _photographs(folder, transform)
    )
    if head:
        for name, parameter in model.named_parameters():
            parameter.requires_grad = name.startswith("head.")
    weights = [x for x in model.parameters() if x.requires_grad]
    optimizer = torch.optim.AdamW(weights, 1e-4)
    model.train()
    done = 0
    while done < steps:
        for pixels, labels in images:
            loss = torch.nn.functional.cross_entropy(model(pixels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    model.eval()
    right = total = 0
    with torch.inference_mode():
        for pixels, labels in test:
            right += int((model(pixels).argmax(1) == labels).sum())
            total += len(labels)
    torch.save(model.state_dict(), output / "model.pt")
    return right / total


def _transformers(folder: str, steps: int, head: bool, output: pathlib.Path) -> float:
    import torch
    import transformers

    config = transformers.ViTConfig(
        hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_labels=2
    )
    model = transformers.ViTForImageClassification(config)
    if head:
        for parameter in model.vit.parameters():
            parameter.requires_grad = False
    processor = transformers.ViTImageProcessor()

    def transform(image: Any) -> Any:
        found = processor(image.convert("RGB"), return_tensors="pt")
        return found["pixel_values"][0]

    def collate(rows: Any) -> dict[str, Any]:
        pixels, labels = zip(*rows, strict=True)
        return {"pixel_values": torch.stack(pixels), "labels": torch.tensor(labels)}

    images, test = _photographs(folder, transform)
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(
            output_dir=str(output),
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            learning_rate=1e-4,
            dataloader_num_workers=2,
            remove_unused_columns=False,
            report_to="none",
            use_cpu=True,
        ),
        data_collator=collate,
        train_dataset=images,
        eval_dataset=test,
        compute_metrics=lambda x: {
            "accuracy": float((x.predictions.argmax(1) == x.label_ids).mean())
        },
    )
    trainer.train()
    trainer.save_model()
    return trainer.evaluate()["eval_accuracy"]


def _ultralytics(folder: str, steps: int, head: bool, output: pathlib.Path) -> float:
    """YOLO11n, as the package has no Vision Transformer for classification."""
    ultralytics = importlib.import_module("ultralytics")
    model = ultralytics.YOLO("yolo11n-cls.yaml")
    found = model.train(
        data=folder,
        epochs=-(-steps // 20),
        imgsz=SIZE,
        batch=BATCH,
        device="cpu",
        workers=2,
        freeze=10 if head else None,
        project=str(output),
    )
    return float(json.loads(json.dumps(found.top1)))
