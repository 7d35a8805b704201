// Everything.
#pragma once

#include "fulmen/attention.h"
#include "fulmen/backend.h"
#include "fulmen/compile.h"
#include "fulmen/emulated_work.h"
#include "fulmen/hooks.h"
#include "fulmen/kv_cache.h"
#include "fulmen/names.h"
#include "fulmen/plan.h"
#include "fulmen/printable.h"
#include "fulmen/problem.h"
#include "fulmen/reference.h"
#include "fulmen/status.h"
#include "fulmen/tensor.h"
#include "fulmen/unused_rows.h"
#include "fulmen/version.h"
