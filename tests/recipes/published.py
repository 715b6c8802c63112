"""Settings of published runs, copied as numbers from their sources.

Each value stands as its source has it; test_published.py converts. Sources:

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
}

# vit_jax/configs/common.py, get_config; ViT, Table 4, has the same batch,
# clipping, decay and no weight decay.
VIT_JAX = {
    "grad_norm_clip": 1.0,
    "optim_dtype": "bfloat16",
    "batch": 512,
    "base_lr": 0.03,
    "decay_type": "cosine",
    "warmup_steps": 500,
    "momentum": 0.9,  # vit_jax/train.py
    "dropout_rate": 0.0,  # vit_jax/configs/models.py: b16, b32
    "weight_decay": None,
    "pp": "vit_jax",  # vit_jax/input_pipeline.py
    "crop": 384,  # DATASET_PRESETS
}
# vit_jax/configs/common.py, DATASET_PRESETS
CIFAR = {"total_steps": 10_000, "train": "train[:98%]", "test": "test"}
IMAGENET = {
    "total_steps": 20_000,
    "train": "train[:99%]",
    "test": "validation",
}
# vit_jax/configs/vit.py
B16_CIFAR10 = {**VIT_JAX, **CIFAR, "base_lr": 0.01}
# vit_jax/configs/models.py: l16, h14, r50_b16 and r50_l32, a copy of l16
DROPOUT = {"dropout_rate": 0.1}
# vit_jax/configs/augreg.py
AUGREG = {
    **VIT_JAX,
    "total_steps": 500,
    "warmup_steps": 100,
    "train": "train",
    "test": "test",
}
# ViT, Section 4.1: chosen on a validation split, then trained on all images.
SWEEP = {"sweep": (0.001, 0.003, 0.01, 0.03), "train": "train"}
# big_vision/configs/transfer.py, and its docstring for the learning rate of
# B/32 on CIFAR-10; optimizer: big_vision/optax.py, momentum_hp
BIG_VISION = {
    "grad_norm_clip": 1.0,
    "optim_dtype": "bfloat16",
    "batch": 512,
    "base_lr": 0.003,
    "decay_type": "cosine",
    "warmup_steps": 500,
    "momentum": 0.9,
    "dropout_rate": 0.0,
    "weight_decay": None,
    "pp": "big_vision",  # resmall_crop, h_res=448, l_res=384
    "crop": 384,
    "total_steps": 10_000,
    "train": "train[:98%]",
    "test": "test",
}
# big_transfer/bit_hyperrule.py, bit_common.py, bit_jax/train.py and
# input_pipeline_tf2_or_jax.py, for CIFAR-10
BIT = {
    "grad_norm_clip": None,
    "optim_dtype": "float32",
    "batch": 512,
    "base_lr": 0.003,
    "decay_type": "staircase",
    "supports": (500, 3000, 6000, 9000, 10_000),
    "momentum": 0.9,
    "dropout_rate": 0.0,
    "weight_decay": None,
    "pp": "bit-hyperrule",
    "crop": 128,
    "mixup": 0.1,
    "total_steps": 10_000,
    "train": "train[:98%]",
    "test": "test",
}

# facebookresearch/mae at efb2a80: FINETUNE.md, and main_finetune.py for what
# its commands leave out
_MAE = {
    "batch_size": 32,
    "gpus": 4 * 8,
    "warmup_epochs": 5,
    "weight_decay": 0.05,
    "clip_grad": None,
    "reprob": 0.25,
    "mixup": 0.8,
    "cutmix": 1.0,
    "smoothing": 0.1,
    "global_pool": True,
}
_LARGE = {"epochs": 50, "blr": 1e-3, "layer_decay": 0.75}
MAE_FINETUNE = {
    "ViTB16": {
        **_MAE,
        "epochs": 100,
        "blr": 5e-4,
        "layer_decay": 0.65,
        "drop_path": 0.1,
    },
    "ViTL16": {**_MAE, **_LARGE, "drop_path": 0.2},
    "ViTH14": {
        **_MAE,
        **_LARGE,
        "drop_path": 0.3,
        "batch_size": 16,
        "gpus": 8 * 8,
    },
}

_TUNE = "recipes/finetune_cifar.py --preset "
_B16 = "--model ViTB16 --weights imagenet21k"
FINE_TUNING = {
    f"{_TUNE}vit_jax --dataset cifar10 {_B16} --accumulate 8": B16_CIFAR10,
    f"{_TUNE}vit_jax --dataset cifar100 --model R50ViTB16 --weights "
    "imagenet21k --accumulate 8": {**VIT_JAX, **CIFAR, **DROPOUT},
    f"{_TUNE}vit_jax --dataset imagenet2012 --model ViTL16 --weights "
    "imagenet21k --accumulate 8": {**VIT_JAX, **IMAGENET, **DROPOUT},
    f"{_TUNE}vit_jax --dataset cifar100 {_B16} --sweep paper": {
        **VIT_JAX,
        **CIFAR,
        **SWEEP,
        "held_out": "train[98%:]",
    },
    # Steps: ViT, Table 4. Warm-up: vit_jax/configs/augreg.py.
    f"{_TUNE}vit_jax --dataset oxford_iiit_pet {_B16} --sweep paper": {
        **AUGREG,
        **SWEEP,
        "held_out": "train[90%:]",
    },
    # ViT, Section 4.1, on Table 2
    f"{_TUNE}vit_jax --dataset imagenet2012 --model ViTL16 --weights "
    "imagenet21k --image-size 512 --average 0.9999": {
        **VIT_JAX,
        **IMAGENET,
        **DROPOUT,
        "crop": 512,
        "polyak": 0.9999,
    },
    # README of vision_transformer, "total_steps / warmup_steps"
    f"{_TUNE}vit_jax --dataset cifar10 {_B16} --steps 500 --warmup-steps 50": {
        **B16_CIFAR10,
        "total_steps": 500,
        "warmup_steps": 50,
    },
    f"{_TUNE}vit_jax --dataset cifar100 {_B16} --steps 500 --warmup-steps 50": {
        **VIT_JAX,
        **CIFAR,
        "total_steps": 500,
        "warmup_steps": 50,
    },
    f"{_TUNE}vit_jax-augreg --dataset oxford_iiit_pet --model ViTB16 "
    "--weights augreg-imagenet21k": AUGREG,
    f"{_TUNE}big_vision --dataset cifar10 --model ViTB32 --weights "
    "augreg-imagenet21k --learning-rate 0.003": BIG_VISION,
    f"{_TUNE}bit-hyperrule --dataset cifar10 --model BiT_R50x1 --weights "
    "imagenet21k": BIT,
}

# What big_vision's configurations of pre-training have in common.
_PRETRAINING = {
    "grad_clip_norm": 1.0,
    "mu_dtype": "bfloat16",
    "batch_size": 4096,
    "init_head_bias": 0.0,
    "dropout": 0.0,
    "randaug": None,
    "mixup": 0.0,
    "pp": "pretrain",
}
_ADAM = {
    **_PRETRAINING,
    "optax_name": "scale_by_adam",
    "b1": 0.9,
    "b2": 0.999,
    "lr": 0.001,
    "wd": 0.0001,
    "warmup_steps": 10_000,
    "decay_type": "cosine",
}
_MOMENTUM = {
    **_PRETRAINING,
    "optax_name": "big_vision.momentum_hp",
    "momentum": 0.9,
    "decay_type": "cosine",
    "total_epochs": 90,
    "model": "BiT_R50x1",
    "rep_size": False,
}
_I1K = {"split": "train[:99%]", "dataset": "imagenet2012"}
_I21K = {"split": "full[51200:]", "dataset": "imagenet21k"}
# ViT, Table 3 (batch 4096, warm-up of 10k steps; ImageNet clips at norm 1)
_PAPER = {
    **_ADAM,
    "mu_dtype": "float32",
    "split": "train",
    "dropout": 0.1,
    "model": "ViTB16",
    "rep_size": True,
    "pool_type": "tok",
    "posemb": "vit_jax",  # vit_jax/models_vit.py: N(0, 0.02)
}
# BiT, Section 3.3: 0.03 * batch / 256, weight decay 1e-4 as part of the
# gradient (1 / (1 - 0.9) of it a step), no clipping.
_BIT = {
    **_MOMENTUM,
    "mu_dtype": "float32",
    "grad_clip_norm": None,
    "lr": 0.03 / 256 * 4096,
    "wd": 1e-4 * 10 * 0.03 / 256 * 4096,
    "warmup_steps": 5000,
    "decay_type": "staircase",
    "split": "train",
    "preactivation": True,
}

# Settings that only some have: names of ours and of theirs.
OPTIONS = {
    "cutmix": "cutmix",
    "erase": "reprob",
    "label_smoothing": "smoothing",
    "drop_path": "drop_path",
}

PRETRAINING = {
    "paper-imagenet21k": {
        **_PAPER,
        "dataset": "imagenet21k",
        "total_epochs": 90,
        "lr": 1e-3,
        "wd": 0.03 * 1e-3,
        "decay_type": "linear",
        # github.com/google-research/vision_transformer/issues/2
        "loss": "sigmoid",
        "init_head_bias": -10.0,
        "grad_clip_norm": None,
    },
    "paper-imagenet": {
        **_PAPER,
        "dataset": "imagenet2012",
        "total_epochs": 300,
        "lr": 3e-3,
        "wd": 0.3 * 3e-3,
        "loss": "softmax",
    },
    # big_vision/configs/vit_i1k.py
    "augreg-imagenet": {
        **_ADAM,
        **_I1K,
        "total_epochs": 300,
        "loss": "sigmoid",
        "init_head_bias": -6.9,
        "model": "ViTB16",
        "rep_size": True,
        "pool_type": "tok",
        "posemb": "learn",
        "randaug": (2, 15),
        "mixup": 0.5,
    },
    # big_vision/configs/vit_i21k.py, but pool_type="gap": the released files
    # have a class token.
    "augreg-imagenet21k": {
        **_ADAM,
        **_I21K,
        "total_epochs": 300,
        "loss": "sigmoid",
        "init_head_bias": -10.0,
        "model": "ViTB16",
        "rep_size": False,
        "pool_type": "tok",
        "posemb": "learn",
        "randaug": (2, 10),
        "mixup": 0.2,
    },
    # big_vision/configs/vit_s16_i1k.py
    "big-vision-s16": {
        **_ADAM,
        **_I1K,
        "total_epochs": 90,
        "batch_size": 1024,
        "loss": "softmax",
        "model": "ViTS16",
        "rep_size": True,
        "pool_type": "gap",
        "posemb": "sincos2d",
        "randaug": (2, 10),
        "mixup": 0.2,
        # 1,268,355 of 1,281,167 images, 90 times, by 1024
        "total_steps": 111_477,
    },
    # facebookresearch/deit, main.py, at 7e160fe; DeiT, Table 9
    "deit": {
        **_ADAM,
        "mu_dtype": "float32",
        "grad_clip_norm": None,
        "lr": 5e-4 * 1024 / 512,
        "wd": 0.05 * 5e-4 * 1024 / 512,
        "warmup_steps": round(5 * 1_281_167 / 1024),  # 5 epochs
        "total_epochs": 300,
        "batch_size": 1024,
        "dataset": "imagenet2012",
        "split": "train",
        "loss": "softmax",
        "model": "ViTB16",
        "rep_size": False,
        "randaug": (2, 10),  # rand-m9-mstd0.5-inc1
        "mixup": 0.8,
        "cutmix": 1.0,
        "reprob": 0.25,
        "smoothing": 0.1,
        "drop_path": 0.1,
        "pp": "mae-finetune",  # `create_transform` of timm, too
    },
    "bit-s": {**_BIT, "dataset": "imagenet2012", "loss": "softmax"},
    "bit-m": {
        **_BIT,
        "dataset": "imagenet21k",
        "loss": "sigmoid",  # big_vision/configs/bit_i21k.py
        "init_head_bias": -10.0,
    },
    # big_vision/configs/bit_i1k.py; model_name="bit"
    "big-vision-bit-imagenet": {
        **_MOMENTUM,
        **_I1K,
        "loss": "softmax",
        "lr": (0.1 / 256) * 4096,
        "wd": (1e-4 / 256) * 4096,
        "warmup_steps": 1000,
        "preactivation": False,
    },
    # big_vision/configs/bit_i21k.py; model_name="bit_paper"
    "big-vision-bit-imagenet21k": {
        **_MOMENTUM,
        **_I21K,
        "loss": "sigmoid",
        "init_head_bias": -10.0,
        "lr": (0.03 / 256) * 4096,
        "wd": (3e-5 / 256) * 4096,
        "warmup_steps": 5000,
        "preactivation": True,
    },
}

# big_vision/configs/common_fewshot.py
FEW_SHOT = {
    "shots": (1, 5, 10, 25),
    "l2_reg": 2.0**10,
    "num_seeds": 3,
    "pp": "few-shot",  # resize(256)|central_crop(224)
}
# ViT, Appendix B.1.1 and Table 4; momentum: vit_jax/train.py
VTAB = {
    "steps": 2500,
    "lr": 0.01,
    "resolution": 384,
    "batch": 512,
    "momentum": 0.9,
    "optim_dtype": "bfloat16",
    "grad_norm_clip": 1.0,
    "tasks": 19,
}
