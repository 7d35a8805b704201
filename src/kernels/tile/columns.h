// Tiles of columns in flight from memory to LDS, as rows and, on AMD, transposed. As tile/stage.h,
// for any tensor:
//   fetch(...)          starts a tile's loads, from a ColumnSource or what has the same members;
//                       rows past the end repeat the last one
//   commit_columns()    ends what one step fetches; columns_arrived() waits for it
//   publish(...)        the tile is in LDS after the barrier that follows
// Rows that `alive` says no to become 0.
#pragma once

#include "algorithm/transposed_rows.h"
#include "tile/column_source.h"
#include "tile/rows.h"
#include "tile/values.h"

#if defined(FULMEN_TARGET_SM80)
#include "tile/nvidia/columns.h"
#else
#include "tile/amd/columns.h"
#endif
