#include "runtime/platform/mutexes.h"

#include <windows.h>

namespace fulmen::platform {
namespace {

static_assert(sizeof(SRWLOCK) == sizeof(void*));
SRWLOCK* of(void** lock) noexcept { return reinterpret_cast<SRWLOCK*>(lock); }

}  // namespace

void SharedMutex::lock() noexcept { ::AcquireSRWLockExclusive(of(&lock_)); }
void SharedMutex::unlock() noexcept { ::ReleaseSRWLockExclusive(of(&lock_)); }
void SharedMutex::lock_shared() noexcept { ::AcquireSRWLockShared(of(&lock_)); }
void SharedMutex::unlock_shared() noexcept { ::ReleaseSRWLockShared(of(&lock_)); }

}  // namespace fulmen::platform
