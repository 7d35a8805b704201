// Stands in for a vendor's library.
#include "fulmen/export.h"

extern "C" FULMEN_API int fulmen_stand_in() { return 42; }
