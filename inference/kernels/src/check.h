// Whether what the C face was given can be computed at all.
#ifndef QUIRE_CHECK_H
#define QUIRE_CHECK_H

#include "internal.h"

namespace quire {

bool is_valid(const qk_model &model);
bool is_valid(const qk_kv &kv, const qk_model &model);
bool is_valid(const qk_step &step, const qk_model &model, const qk_kv &kv);

}  // namespace quire

#endif
