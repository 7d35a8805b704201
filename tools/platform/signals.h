// Between tools/signals.cpp and each system's handler of signals.
#pragma once

namespace fulmen::tools {

// What a signal that ends the process does first, in a thread that may wait and take locks:
// TellAtSignal's owner tells, and compilers end.
void prepare_for_the_end();

}  // namespace fulmen::tools
