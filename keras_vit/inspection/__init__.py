from keras_vit.inspection.attention import (
    attention_distance,
    attention_heads,
    attention_heatmap,
    attention_maps,
    attention_rollout,
    outlier_tokens,
    token_norms,
)
from keras_vit.inspection.features import feature_pca
from keras_vit.inspection.filters import embedding_filters, position_similarity
from keras_vit.inspection.plots import (
    plot_attention_distance,
    plot_attention_heads,
    plot_attention_heatmap,
    plot_attention_maps,
    plot_embedding_filters,
    plot_feature_pca,
    plot_position_similarity,
    plot_token_norms,
)
from keras_vit.inspection.relevance import relevance
from keras_vit.inspection.tokens import find_blocks, token_layout

__all__ = [
    "attention_distance", "attention_heads", "attention_heatmap", "attention_maps",
    "attention_rollout", "embedding_filters", "feature_pca", "find_blocks",
    "outlier_tokens", "plot_attention_distance", "plot_attention_heads",
    "plot_attention_heatmap", "plot_attention_maps", "plot_embedding_filters",
    "plot_feature_pca", "plot_position_similarity", "plot_token_norms",
    "position_similarity", "relevance", "token_layout", "token_norms",
]  # fmt: skip
