// The C face of Quire's CPU kernels: matrices, a thread team, and a model's whole step in one call.
//
// Plain C types only; Python calls it with ctypes, which lets go of the interpreter lock meanwhile.
// Every function that can fail returns 0 or a negative QK_ERROR_*.
//
// One promise holds everywhere: what is computed for a row never depends, to the last bit, on the other
// rows of the step, on their number, or on the number of threads. So a token gives the same keys, values
// and logits alone, in a batch, and in whatever chunk of a prompt it was computed.
#ifndef QUIRE_KERNELS_H
#define QUIRE_KERNELS_H

#include <stdint.h>

#if defined(_WIN32)
#define QK_API __declspec(dllexport)
#else
#define QK_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define QK_ABI_VERSION 11
#define QK_ERROR_ARGUMENT -1   // a type, size or pointer that cannot be
#define QK_ERROR_MEMORY -2     // no memory for the scratch space
#define QK_ERROR_CANCELLED -3  // the step was told to stop; what it wrote is of no use
#define QK_ERROR_NUMBERS -4    // a number is NaN or infinite

QK_API int32_t qk_abi_version(void);

// ------------------------------------------------------------------ instruction sets

// The instruction set in use: "avx512vnni", "avxvnni", "avx2", "neon" or "portable".
QK_API const char *qk_isa(void);
// Take another that this processor has; for tests and measurements. Not while a step runs.
QK_API int32_t qk_set_isa(const char *name);

// ------------------------------------------------------------------ threads

typedef struct qk_team qk_team;
// A team of so many threads, the caller among them (1: nobody else). They sleep between steps.
QK_API qk_team *qk_team_new(int32_t num_threads);
QK_API void qk_team_free(qk_team *team);
QK_API int32_t qk_team_size(const qk_team *team);

// ------------------------------------------------------------------ matrices

// Types by GGUF's numbers.
enum {
  QK_F32 = 0, QK_F16 = 1, QK_Q4_0 = 2, QK_Q4_1 = 3, QK_Q5_0 = 6, QK_Q5_1 = 7, QK_Q8_0 = 8,
  QK_Q4_K = 12, QK_Q5_K = 13, QK_Q6_K = 14, QK_IQ4_NL = 20, QK_IQ4_XS = 23, QK_BF16 = 30, QK_MXFP4 = 39
};

// A weight: num_rows outputs, num_columns inputs. Packed data is made by qk_pack, aligned to 64 bytes.
typedef struct {
  int32_t type;         // QK_*
  int32_t num_rows;
  int32_t num_columns;  // a multiple of the type's block (32, or 256 for the K types; 1 for floats)
  int32_t reserved;
  const void *data;
} qk_matrix;

// Bytes of one row in a GGUF file; 0 for a type or size that is not known.
QK_API int64_t qk_file_row_bytes(int32_t type, int32_t num_columns);
// Bytes of the packed matrix; 0 for a type or size that is not known.
QK_API int64_t qk_packed_bytes(int32_t type, int32_t num_rows, int32_t num_columns);
// Rows of a packed matrix lie in panels of this many.
QK_API int32_t qk_panel_rows(void);
// Pack rows [first_row, first_row + count) of the matrix; first_row is a multiple of the panel, and count
// too unless it reaches the end. file_rows has a pointer to each row as it lies in the file: so a matrix
// may be any rows of any tensor, in any order. May be called from several threads for different rows.
QK_API int32_t qk_pack(int32_t type, int32_t num_rows, int32_t num_columns, void *packed,
                       int32_t first_row, int32_t count, const void *const *file_rows);
// One row as floats, exactly as the type defines it.
QK_API int32_t qk_unpack_row(const qk_matrix *matrix, int32_t row, float *out);
// y = x W^T: x (num_x, num_columns) and y (num_x, num_rows), rows x_stride and y_stride floats apart.
// Quantised weights meet inputs rounded to 8 bits per 32 numbers. One call at a time per team.
QK_API int32_t qk_matmul(qk_team *team, const qk_matrix *matrix, const float *x, int32_t num_x,
                         int64_t x_stride, float *y, int64_t y_stride);

// ------------------------------------------------------------------ a model

// Of gate g and up u: silu(g) * u; gelu(g) * u; and g * sigmoid(1.702 g) * (u + 1), where g is at most 7 and u within
// +-7 (gpt-oss).
enum { QK_SILU = 0, QK_GELU_TANH = 1, QK_CLAMPED_SWISH = 2 };
enum { QK_QK_NORM_NONE = 0, QK_QK_NORM_HEAD = 1, QK_QK_NORM_WHOLE = 2 };

// Pointers may be null where a model has no such part. All norms are RMS norms with plain weights (Gemma's
// "one plus" is added when they are loaded).
typedef struct {
  const float *attention_norm;       // (hidden) before attention; null: none (OLMo 2)
  const float *post_attention_norm;  // (hidden) on attention's result, before it is added
  const float *mlp_norm;             // (hidden) before the MLP; null: none
  const float *post_mlp_norm;        // (hidden) on the MLP's result
  const float *query_norm;           // (head_dim), or (heads * head_dim) for QK_QK_NORM_WHOLE
  const float *key_norm;
  const float *value_norm;           // (head_dim) on each value; null: none
  // With experts theirs, one after the other. No key: the layer attends to what an earlier one stored. No value beside a
  // key: values are the key's product, before its norm and its turning.
  qk_matrix query, key, value, output, gate, up, down;
  qk_matrix router;  // (experts, hidden)
  const float *router_bias;    // (experts)
  // Gemma 4: norms of x for router and experts, whose input is the MLP's else (the router's results are divided by
  // sqrt(hidden) then); norms on what the expert that all share makes, and on what the others make together; a factor
  // on each expert's weight. Null: none.
  const float *router_norm, *expert_norm, *post_shared_norm, *post_expert_norm;  // (hidden)
  const float *expert_scale;                                                     // (experts)
  const float *shared_router;  // (hidden): sigmoid of it is the weight of the expert that all share; null: 1
  qk_matrix shared_gate, shared_up, shared_down;  // (shared, hidden), (shared, hidden), (hidden, shared)
  const float *query_bias, *key_bias, *value_bias, *output_bias, *gate_bias, *up_bias, *down_bias;
  const float *sinks;       // (heads) a score that joins the softmax of each query and has no value; null: none
  const float *key_centre;  // (kv_heads * head_dim), subtracted from keys once they are turned; null: none
  qk_matrix ple_gate;          // (ple, hidden); per-layer embeddings, see qk_model
  qk_matrix ple_output;        // (hidden, ple)
  const float *post_ple_norm;  // (hidden)
  const float *layer_scale;    // (1) on the residual stream behind the layer; null: none
  int32_t window;      // a token sees itself and window - 1 before it; 0: all
  int32_t rope_index;  // which of the model's rotary tables
  int32_t num_kv_heads, head_dim, mlp_size;  // of this layer
  int32_t kv_layer;    // where in qk_kv its keys and values are
} qk_layer;

typedef struct {
  const float *inverse_frequencies;  // (num_pairs): angle = position * this, in float
  float factor;                      // on cosine and sine
  int32_t num_pairs;                 // the first 2 * this numbers of a head are turned, (i, i + num_pairs)
} qk_rope;

typedef struct {
  // num_kv_heads, head_dim and mlp_size are the largest of any layer. All layers that have a key come before all that
  // have none.
  int32_t num_layers, hidden_size, num_heads, num_kv_heads, head_dim, mlp_size, vocab_size;
  int32_t ple_size;         // per-layer embeddings: each layer adds, behind its MLP, post_ple_norm(ple_output(
                            // activation(ple_gate(x)) * e)), where its part of a token's e is (ple_norm(ple_projection(x0)
                            // / sqrt(hidden)) + ple_embedding * sqrt(ple_size)) / sqrt(2), x0 being x at first; 0: none
  int32_t activation;       // QK_SILU, ...
  int32_t query_key_norm;   // QK_QK_NORM_*
  float norm_epsilon;
  float embedding_scale;    // on the embedding's rows
  float residual_scale;     // on what attention and MLP add
  float attention_scale;    // on scores
  float query_growth;       // 0: none; queries at position p are multiplied by 1 + this * log(1 + p / growth_tokens),
  int32_t growth_tokens;    // the quotient rounded down; 1 or more if they grow
  float logit_scale;        // on logits
  float attention_softcap;  // 0: none
  float logit_softcap;      // 0: none; after logit_scale
  int32_t num_experts;      // of each layer, whose sizes then are multiples of the panel; 0: one MLP for all tokens
  int32_t num_experts_used; // of each token: those to which softmax of the router's results gives the largest weights
  int32_t expert_weights_sum_to_one;  // not 0: the weights of those that are used are divided by their sum
  int32_t shared_size;      // width inside the expert that all tokens share; 0: none
  int32_t num_ropes;
  const qk_rope *ropes;
  const qk_layer *layers;
  qk_matrix embedding, head;
  qk_matrix ple_embedding;   // (vocab, layers * ple)
  qk_matrix ple_projection;  // (layers * ple, hidden)
  const float *ple_norm;     // (ple)
  const float *final_norm;
} qk_model;

// ------------------------------------------------------------------ KV memory

enum { QK_KV_F32 = 0, QK_KV_F16 = 1, QK_KV_BF16 = 2, QK_KV_INT8 = 3, QK_KV_INT4 = 4 };

// One layer's slots: planes as inference/kv_cache/schemes.py defines them, each (R, num_slots, X),
// contiguous. Keys' heads come first, then values'.
typedef struct {
  void *planes[5];
  int32_t value_groups;     // G of int4
  int32_t reserved;
  float stored_factor;      // int8, int4: what is stored is x times a Hadamard matrix of +-this; 0: upright
  float query_factor;       // queries and results are turned by one of +-this
} qk_kv_layer;

typedef struct {
  int32_t scheme;           // QK_KV_*
  int32_t num_layers;
  int64_t num_slots;        // N * P
  const qk_kv_layer *layers;
} qk_kv;

// ------------------------------------------------------------------ a step

typedef struct {
  int32_t row;          // index of its first token in the step
  int32_t num_rows;     // new tokens, >= 1
  int32_t start;        // tokens before them, all in the slots
  int32_t num_extents;
  const int64_t *extents;  // pairs (first slot, number of slots) of the tokens [0, start + num_rows), in order
} qk_span;

typedef struct {
  int32_t num_rows;           // T
  int32_t num_spans;
  int32_t num_keep;           // rows whose logits are wanted
  int32_t num_logits;         // L: only the first ones are computed, a multiple of the panel or all; 0: all
  const int32_t *token_ids;   // (T)
  const int32_t *positions;   // (T), each token's place in its own sequence
  const int64_t *slots;       // (T), where its keys and values go
  const qk_span *spans;
  const int32_t *keep;        // (num_keep), rising
  float *logits;              // (num_keep, L)
  const volatile int32_t *cancel;  // may be null; not 0: stop soon
} qk_step;

// Bytes of qk_matrix, qk_layer, qk_rope, qk_model, qk_kv_layer, qk_kv, qk_span, qk_step, qk_plane, qk_row_file,
// qk_filters (0 to 10), for callers that mirror them; 0 for any other number.
QK_API int64_t qk_struct_bytes(int32_t index);

// Compute a step: stores its keys and values, writes the logits. One call at a time per team.
QK_API int32_t qk_forward(qk_team *team, const qk_model *model, const qk_kv *kv, const qk_step *step);

// ------------------------------------------------------------------ after a step

// Tokens that include the `count` highest of `size` logits and all equals of the lowest of those, in order of ids.
// Returns how many there are, of which the first `capacity` are written, or a QK_ERROR_*. 1 <= count < size.
QK_API int32_t qk_likeliest(const float *logits, int32_t size, int32_t count, int32_t capacity, int32_t *ids);

// The highest of `size` logits, of equals the lowest id, and its probability in their softmax, to 0.2 % where there are
// a million. Returns the id, or a QK_ERROR_*.
QK_API int32_t qk_surest(const float *logits, int32_t size, float *probability);

// How a token is drawn; see SamplingParams of inference/config.py.
typedef struct {
  double temperature;  // above 0
  double top_p, min_p;
  int32_t top_k;  // 1 <= top_k < size
  int32_t reserved;
} qk_filters;

// Draw one of the top_k highest of `size` logits that top-p and min-p leave; of equals the lower ids rank higher.
// number: 0 <= number < 1, where in their distribution. Returns the token, or a QK_ERROR_*.
QK_API int32_t qk_draw(const float *logits, int32_t size, const qk_filters *filters, double number);

// ------------------------------------------------------------------ rows on their way to the disk

// Rows of all slots and layers, (num_runs, num_slots, row_bytes).
typedef struct {
  const uint8_t *data;
  int64_t num_runs;
  int64_t num_slots;
  int64_t row_bytes;
} qk_plane;

// A file with the rows of a run of slots: the header; plane by plane and run by run the rows; their CRC-32.
typedef struct {
  const char *temporary;  // where it lies until it is whole; nothing is left there
  const char *path;
  const uint8_t *header;
  int64_t header_bytes;
  int64_t first_slot;
  int64_t num_rows;
  int64_t used_ns;        // the time that it gets, since 1970
  int32_t is_written;     // out: whether it is whole, in its place and private (0600)
  int32_t reserved;
} qk_row_file;

// Write files, of which each is whole or absent; on systems without POSIX none is written. The buffer holds the rows of
// any of them and 4 bytes more. Works on the calling thread alone, spread over so long, each in a pause of the teams if
// there is one soon enough. While *is_hurried is not 0, and others may change it, nothing is waited for.
QK_API int32_t qk_write_rows(const qk_plane *planes, int32_t num_planes, qk_row_file *files, int32_t num_files,
                             uint8_t *buffer, int64_t buffer_bytes, int64_t spread_us,
                             const volatile int32_t *is_hurried);
// As zlib's.
QK_API uint32_t qk_crc32(const uint8_t *data, int64_t size);

// ------------------------------------------------------------------ parts of a step, for tests and measurements

// Store rows as a step does: keys and values (num_rows, num_kv_heads * head_dim), upright.
QK_API int32_t qk_store(const qk_model *model, const qk_kv *kv, int32_t layer, int32_t num_rows,
                        const float *keys, const float *values, const int64_t *slots);
// Attend as a step does, from its spans: query and out (T, num_heads * head_dim). Queries are scaled
// already, and turned if the slots are.
QK_API int32_t qk_attend(qk_team *team, const qk_model *model, const qk_kv *kv, int32_t layer,
                         const qk_step *step, const float *query, float *out);

#ifdef __cplusplus
}
#endif
#endif
