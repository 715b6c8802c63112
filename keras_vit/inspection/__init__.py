from keras_vit.inspection.attention import (
    attention_distance as attention_distance,
)
from keras_vit.inspection.attention import attention_heads as attention_heads
from keras_vit.inspection.attention import (
    attention_heatmap as attention_heatmap,
)
from keras_vit.inspection.attention import attention_maps as attention_maps
from keras_vit.inspection.attention import (
    attention_rollout as attention_rollout,
)
from keras_vit.inspection.attention import outlier_tokens as outlier_tokens
from keras_vit.inspection.attention import token_norms as token_norms
from keras_vit.inspection.features import feature_pca as feature_pca
from keras_vit.inspection.filters import embedding_filters as embedding_filters
from keras_vit.inspection.filters import position_similarity as position_similarity
from keras_vit.inspection.plots import (
    plot_attention_distance as plot_attention_distance,
)
from keras_vit.inspection.plots import (
    plot_attention_heads as plot_attention_heads,
)
from keras_vit.inspection.plots import (
    plot_attention_heatmap as plot_attention_heatmap,
)
from keras_vit.inspection.plots import (
    plot_attention_maps as plot_attention_maps,
)
from keras_vit.inspection.plots import (
    plot_embedding_filters as plot_embedding_filters,
)
from keras_vit.inspection.plots import plot_feature_pca as plot_feature_pca
from keras_vit.inspection.plots import (
    plot_position_similarity as plot_position_similarity,
)
from keras_vit.inspection.plots import plot_token_norms as plot_token_norms
from keras_vit.inspection.relevance import relevance as relevance
from keras_vit.inspection.tokens import find_blocks as find_blocks
from keras_vit.inspection.tokens import token_layout as token_layout
