// AMD: tiles in LDS are read as the operands that rows of memory come in. Included by targets/selected.h inside the namespace.
#pragma once

constexpr int kTileMmaK = kMmaK;
using QueryOperand = RowOperand;
using KeyOperand = RowOperand;
FULMEN_DEVICE RowOperand lds_row_operand(int at, int pitch);  // tile/rows.h
FULMEN_DEVICE QueryOperand lds_query_operand(int at, int pitch) { return lds_row_operand(at, pitch); }
FULMEN_DEVICE KeyOperand lds_key_operand(int at, int pitch) { return lds_row_operand(at, pitch); }
