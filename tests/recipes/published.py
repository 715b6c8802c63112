"""Settings of published runs, from the numbers of their sources.

test_published.py reads settings of the same names from the run that a command
plans. Sources:

- vit_jax: google-research/vision_transformer at c6de1e5, folder vit_jax
- big_vision: google-research/big_vision at 0127fb6, folder big_vision
- big_transfer: google-research/big_transfer at 140de6e
- ViT: "An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929
- BiT: "Big Transfer (BiT)", https://arxiv.org/abs/1912.11370
"""

# Numbers of images: TFDS. ImageNet-21k has 14,197,122.
SIZES = {
    "cifar10": {"train": 50_000, "test": 10_000},
    "cifar100": {"train": 50_000, "test": 10_000},
    "imagenet2012": {"train": 1_281_167, "validation": 50_000},
    "oxford_iiit_pet": {"train": 3_680, "test": 3_669},
    "oxford_flowers102": {"train": 1_020, "test": 6_149},
}
# What no source has unless it says so below.
_NONE = {
    "split": "test",
    "augment": (0, 0),
    **dict.fromkeys(("dropout", "mixup", "cutmix", "erase"), 0),
    **dict.fromkeys(("label_smoothing", "drop_path", "average"), 0),
}
_SGD = {"optimizer": "PublishedSGD", "momentum": 0.9}
_ADAM = {"optimizer": "PublishedAdamW", "beta_1": 0.9, "beta_2": 0.999}

# vit_jax/configs/common.py, get_config; ViT, Table 4, has the same batch,
# clipping, decay and no weight decay. Momentum: vit_jax/train.py. Dropout:
# vit_jax/configs/models.py, b16 and b32. Cropping: vit_jax/input_pipeline.py;
# size: DATASET_PRESETS.
VIT_JAX = {
    **_NONE,
    **_SGD,
    "clip": 1.0,
    "momentum_dtype": "bfloat16",
    "batch_size": 512,
    "peak": 0.03,
    "decay": "cosine",
    "warmup_steps": 500,
    "weight_decay": 0,
    "layer_decay": 0,
    "protocol": "vit_jax",
    "mode": "tf",
    "image_size": 384,
}
# vit_jax/configs/common.py, DATASET_PRESETS: 98 % and 99 % of the images
CIFAR = {"steps": 10_000, "num_train": 49_000, "num_test": 10_000}
IMAGENET = {"steps": 20_000, "num_train": 1_268_355, "num_test": 50_000}
# vit_jax/configs/vit.py
B16_CIFAR10 = {**VIT_JAX, **CIFAR, "peak": 0.01}
# vit_jax/configs/models.py: l16, h14, r50_b16 and r50_l32, a copy of l16
DROPOUT = {"dropout": 0.1}
# vit_jax/configs/augreg.py
AUGREG = {
    **VIT_JAX,
    "steps": 500,
    "warmup_steps": 100,
    "num_train": 3_680,
    "num_test": 3_669,
}
# ViT, Section 4.1: chosen on a validation split, then trained on all images.
SWEEP = (0.001, 0.003, 0.01, 0.03)
SWEEP_IMAGENET = (0.003, 0.01, 0.03, 0.06)
# big_vision/configs/transfer.py, and its docstring for the learning rate of
# B/32 on CIFAR-10; optimizer: big_vision/optax.py, momentum_hp; resmall_crop
# with h_res=448 and l_res=384
BIG_VISION = {**VIT_JAX, **CIFAR, "peak": 0.003, "protocol": "big_vision"}
# big_transfer/bit_hyperrule.py, bit_common.py, bit_jax/train.py and
# input_pipeline_tf2_or_jax.py, for CIFAR-10
BIT = {
    **VIT_JAX,
    **CIFAR,
    "clip": None,
    "momentum_dtype": "float32",
    "peak": 0.003,
    "decay": None,
    "warmup_steps": None,
    "protocol": "bit-hyperrule",
    "image_size": 128,
    "mixup": 0.1,
}
BIT_SUPPORTS = (500, 3000, 6000, 9000)
BIT_SUPPORTS_IMAGENET = (500, 6000, 12_000, 18_000)

# facebookresearch/mae at efb2a80: FINETUNE.md, and main_finetune.py for what
# its commands leave out. Batches: of 32 images on 4 * 8 GPUs, or 16 on 8 * 8.
_MAE = {
    **_NONE,
    **_ADAM,
    "epsilon": 1e-8,
    "batch_size": 1024,
    "num_train": 1_281_167,
    "image_size": 224,
    "decay": "cosine",
    "warmup_steps": 5 * 1252,
    "weight_decay": 0.05,
    "decay_kernels_only": True,
    "clip": None,
    "erase": 0.25,
    "mixup": 0.8,
    "cutmix": 1.0,
    "label_smoothing": 0.1,
    "augment": (2, 10),  # rand-m9-mstd0.5-inc1 of timm
    "pooling": "gap",
    "protocol": "mae-finetune",
}
_LARGE = {**_MAE, "steps": 50 * 1252, "peak": 4e-3, "layer_decay": 0.75}
_COMMAND = "x --preset mae --dataset imagenet2012 --weights x.npz --model "
MAE_FINETUNE = {
    f"{_COMMAND}ViTB16": {
        **_MAE,
        "steps": 100 * 1252,
        "peak": 4 * 5e-4,
        "layer_decay": 0.65,
        "drop_path": 0.1,
    },
    f"{_COMMAND}ViTL16": {**_LARGE, "drop_path": 0.2},
    f"{_COMMAND}ViTH14": {**_LARGE, "drop_path": 0.3},
}

_TUNE = "recipes/finetune_cifar.py --preset "
_B16 = "--model ViTB16 --weights imagenet21k"
_SHORT = "--accumulate 8 --steps 500 --warmup-steps 50"
SHORT = {"steps": 500, "warmup_steps": 50}
FINE_TUNING = {
    f"{_TUNE}vit_jax --dataset cifar10 {_B16} --accumulate 8": B16_CIFAR10,
    f"{_TUNE}vit_jax --dataset cifar100 {_B16} --accumulate 8": {**VIT_JAX, **CIFAR},
    f"{_TUNE}vit_jax --dataset cifar100 --model R50ViTB16 --weights "
    "imagenet21k --accumulate 8": {**VIT_JAX, **CIFAR, **DROPOUT},
    f"{_TUNE}vit_jax --dataset imagenet2012 --model ViTL16 --weights "
    "imagenet21k --accumulate 8": {**VIT_JAX, **IMAGENET, **DROPOUT},
    # Of CIFAR 2 %, and of the others 10 % are held out.
    f"{_TUNE}vit_jax --dataset cifar100 {_B16} --accumulate 8 --sweep paper": {
        **VIT_JAX,
        **CIFAR,
        "num_train": 50_000,
        "num_validation": 1_000,
    },
    # Steps: ViT, Table 4. Warm-up: vit_jax/configs/augreg.py.
    f"{_TUNE}vit_jax --dataset oxford_iiit_pet {_B16} --accumulate 8 --sweep paper": {
        **AUGREG,
        "num_validation": 368,
    },
    # ViT, Section 4.1, on Table 2
    f"{_TUNE}vit_jax --dataset imagenet2012 --model ViTL16 --weights "
    "imagenet21k --accumulate 8 --image-size 512 --average 0.9999": {
        **VIT_JAX,
        **IMAGENET,
        **DROPOUT,
        "image_size": 512,
        "average": 0.9999,
    },
    # README of vision_transformer, "total_steps / warmup_steps"
    f"{_TUNE}vit_jax --dataset cifar10 {_B16} {_SHORT}": {
        **B16_CIFAR10,
        **SHORT,
    },
    f"{_TUNE}vit_jax --dataset cifar100 {_B16} {_SHORT}": {
        **VIT_JAX,
        **CIFAR,
        **SHORT,
    },
    f"{_TUNE}vit_jax-augreg --dataset oxford_iiit_pet --model ViTB16 "
    "--weights augreg-imagenet21k": AUGREG,
    f"{_TUNE}big_vision --dataset cifar10 --model ViTB32 --weights "
    "augreg-imagenet21k --learning-rate 0.003": BIG_VISION,
    f"{_TUNE}bit-hyperrule --dataset cifar10 --model BiT_R50x1 --weights "
    "imagenet21k": BIT,
}

# Cells of the tables of docs/accuracies.md: ViT, Table 5, the README of
# vision_transformer, and that of big_transfer.
_SETS = {
    "cifar10": {**CIFAR, "num_validation": 1_000},
    "cifar100": {**CIFAR, "num_validation": 1_000},
    "oxford_iiit_pet": {**AUGREG, "num_validation": 368},
    "oxford_flowers102": {
        **AUGREG,
        **{"num_train": 1_020, "num_test": 6_149, "num_validation": 102},
    },
    "imagenet2012": {**IMAGENET, "num_validation": 12_812},
}
_COMMON = ("cifar10", "cifar100", "imagenet2012")
_VITS = ("ViTB16", "ViTB32", "ViTL16", "ViTL32")
_DROPOUT = ("ViTL16", "ViTH14", "R50ViTB16")


def _vit(name, dataset, sweep):
    model, *_ = name.split()
    settings = {**VIT_JAX, **_SETS[dataset]}
    if (model, dataset) == ("ViTB16", "cifar10"):
        settings["peak"] = B16_CIFAR10["peak"]
    if model in _DROPOUT:
        settings |= DROPOUT
    if model == "ViTH14":
        settings["image_size"] = 378
    if sweep:
        settings["num_train"] = SIZES[dataset]["train"]
    else:
        settings.pop("num_validation")
    return settings


def _bit(dataset):
    if dataset != "imagenet2012":
        return BIT
    return {**BIT, **IMAGENET, "image_size": 480}


CELLS = {
    f"{_TUNE}vit_jax --dataset {dataset} --weights {weights} --model {model} "
    "--sweep paper --accumulate 8": _vit(model, dataset, True)
    for weights, models in (
        ("imagenet21k", (*_VITS, "ViTH14 --image-size 378")),
        ("runs/paper-imagenet", _VITS),
    )
    for model in models
    for dataset in _SETS
}
CELLS |= {
    f"{_TUNE}vit_jax --dataset {dataset} --weights imagenet21k --model {model}": (
        _vit(model, dataset, False)
    )
    for model in (*_VITS, "R50ViTB16")
    for dataset in _COMMON
}
CELLS |= {
    f"{_TUNE}bit-hyperrule --dataset {dataset} --weights imagenet21k "
    f"--model BiT_{model}": _bit(dataset)
    for model in ("R50x1", "R101x3", "R152x2")
    for dataset in _COMMON
    if (model, dataset) != ("R101x3", "imagenet2012")
}

# What big_vision's configurations of pre-training have in common; `lost` is
# the part of a kernel that a step at the peak takes away.
_PRETRAINING = {
    **_NONE,
    "clip": 1.0,
    "momentum_dtype": "bfloat16",
    "batch_size": 4096,
    "image_size": 224,
    "head_bias": 0.0,
    "protocol": "pretrain",
    "decay": "cosine",
    "model": "ViTB16",
    "representation_size": 768,
    "loss": "softmax",
}
_BIG_VISION = {
    **_PRETRAINING,
    **_ADAM,
    "peak": 0.001,
    "lost": 0.0001,
    "warmup_steps": 10_000,
}
_BIT_BIG_VISION = {
    **_PRETRAINING,
    **_SGD,
    "epochs": 90,
    "model": "BiT_R50x1",
    "representation_size": 0,
}
# Of ImageNet, the first 99 %.
_I1K = {"dataset": "imagenet2012", "num_train": 1_268_355}
_WHOLE = {"dataset": "imagenet2012", "num_train": 1_281_167}
_I21K = {"dataset": "imagenet21k", "num_train": 14_145_922}
_SIGMOID = {"loss": "sigmoid", "head_bias": -10.0}
# ViT, Table 3 (batch 4096, warm-up of 10k steps; ImageNet clips at norm 1)
_PAPER = {**_BIG_VISION, "momentum_dtype": "float32", "dropout": 0.1}
# BiT, Section 3.3: 0.03 * batch / 256, weight decay 1e-4 as part of the
# gradient (1 / (1 - 0.9) of it a step), no clipping.
_BIT = {
    **_BIT_BIG_VISION,
    "momentum_dtype": "float32",
    "clip": None,
    "peak": 0.03 / 256 * 4096,
    "lost": 1e-4 * 10 * 0.03 / 256 * 4096,
    "warmup_steps": 5000,
    "decay": "staircase",
}

PRETRAINING = {
    "paper-imagenet21k": {
        **_PAPER,
        **_I21K,
        # github.com/google-research/vision_transformer/issues/2
        **_SIGMOID,
        "epochs": 90,
        "lost": 0.03 * 1e-3,
        "decay": "linear",
        "clip": None,
    },
    "paper-imagenet": {
        **_PAPER,
        **_WHOLE,
        "epochs": 300,
        "peak": 3e-3,
        "lost": 0.3 * 3e-3,
    },
    # big_vision/configs/vit_i1k.py
    "augreg-imagenet": {
        **_BIG_VISION,
        **_I1K,
        "epochs": 300,
        "loss": "sigmoid",
        "head_bias": -6.9,
        "augment": (2, 15),
        "mixup": 0.5,
    },
    # big_vision/configs/vit_i21k.py, but pool_type="gap": the released files
    # have a class token.
    "augreg-imagenet21k": {
        **_BIG_VISION,
        **_I21K,
        **_SIGMOID,
        "epochs": 300,
        "representation_size": 0,
        "augment": (2, 10),
        "mixup": 0.2,
    },
    # big_vision/configs/vit_s16_i1k.py
    "big-vision-s16": {
        **_BIG_VISION,
        **_I1K,
        "epochs": 90,
        "batch_size": 1024,
        "model": "ViTS16",
        "representation_size": 384,
        "augment": (2, 10),
        "mixup": 0.2,
        # 1,268,355 of 1,281,167 images, 90 times, by 1024
        "steps": 111_477,
    },
    # facebookresearch/deit, main.py, at 7e160fe; DeiT, Table 9
    "deit": {
        **_BIG_VISION,
        **_WHOLE,
        "momentum_dtype": "float32",
        "clip": None,
        "peak": 5e-4 * 1024 / 512,
        "lost": 0.05 * 5e-4 * 1024 / 512,
        "warmup_steps": round(5 * 1_281_167 / 1024),  # 5 epochs
        "epochs": 300,
        "batch_size": 1024,
        "representation_size": 0,
        "augment": (2, 10),  # rand-m9-mstd0.5-inc1
        "mixup": 0.8,
        "cutmix": 1.0,
        "erase": 0.25,
        "label_smoothing": 0.1,
        "drop_path": 0.1,
        "protocol": "mae-finetune",  # `create_transform` of timm, too
    },
    "bit-s": {**_BIT, **_WHOLE},
    "bit-m": {**_BIT, **_I21K, **_SIGMOID},  # big_vision/configs/bit_i21k.py
    # big_vision/configs/bit_i1k.py; model_name="bit"
    "big-vision-bit-imagenet": {
        **_BIT_BIG_VISION,
        **_I1K,
        "peak": (0.1 / 256) * 4096,
        "lost": (1e-4 / 256) * 4096,
        "warmup_steps": 1000,
    },
    # big_vision/configs/bit_i21k.py; model_name="bit_paper"
    "big-vision-bit-imagenet21k": {
        **_BIT_BIG_VISION,
        **_I21K,
        **_SIGMOID,
        "peak": (0.03 / 256) * 4096,
        "lost": (3e-5 / 256) * 4096,
        "warmup_steps": 5000,
    },
}
# Which have batch norms before the convolutions: bit.py or bit_paper.py.
PREACTIVATION = {
    "bit-s": True,
    "bit-m": True,
    "big-vision-bit-imagenet": False,
    "big-vision-bit-imagenet21k": True,
}

# big_vision/configs/common_fewshot.py: resize(256)|central_crop(224)
FEW_SHOT = {"shots": (1, 5, 10, 25), "l2": (2.0**10,), "seeds": 3}
# ViT, Appendix B.1.1 and Table 4; momentum: vit_jax/train.py
VTAB = {
    "steps": 2500,
    "learning_rate": 0.01,
    "image_size": 384,
    "batch_size": 512,
}
