// CRC-32 as zlib has it: reflected, polynomial 0xedb88320.
#ifndef QUIRE_CRC32_H
#define QUIRE_CRC32_H

#include <stddef.h>
#include <stdint.h>

namespace quire {

uint32_t crc32(const uint8_t *data, size_t size);

}  // namespace quire

#endif
