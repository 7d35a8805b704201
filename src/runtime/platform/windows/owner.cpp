#include "runtime/platform/windows/owner.h"

#include <aclapi.h>
#include <sddl.h>

#include <array>
#include <cstddef>
#include <string>

namespace fulmen::platform {
namespace {

// What the system allocates and LocalFree frees.
struct Descriptor {
  explicit Descriptor(HANDLE file) noexcept {
    if (::GetSecurityInfo(file, SE_FILE_OBJECT,
                          OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION, &owner, nullptr,
                          &list, nullptr, &memory) != ERROR_SUCCESS)
      memory = nullptr;
  }
  ~Descriptor() { ::LocalFree(memory); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  PSECURITY_DESCRIPTOR memory = nullptr;
  PSID owner = nullptr;
  PACL list = nullptr;
};

// A user, or the group that owns what this process makes: an administrator's files are the
// administrators'.
struct TokenFact {
  explicit TokenFact(TOKEN_INFORMATION_CLASS fact) noexcept {
    HANDLE token = nullptr;
    if (::OpenProcessToken(::GetCurrentProcess(), TOKEN_QUERY, &token) == 0) return;
    DWORD bytes = 0;
    known = ::GetTokenInformation(token, fact, memory.data(), static_cast<DWORD>(memory.size()),
                                  &bytes) != 0;
    ::CloseHandle(token);
  }
  // TOKEN_USER and TOKEN_OWNER begin with it.
  PSID sid() const noexcept {
    return known ? *reinterpret_cast<const PSID*>(memory.data()) : nullptr;
  }
  alignas(16) std::array<std::byte, 512> memory{};
  bool known = false;
};

bool is_everybody(PSID sid) noexcept {
  for (const WELL_KNOWN_SID_TYPE type :
       {WinWorldSid, WinAuthenticatedUserSid, WinBuiltinUsersSid, WinBuiltinGuestsSid}) {
    if (::IsWellKnownSid(sid, type) != 0) return true;
  }
  return false;
}

}  // namespace

bool is_this_users(HANDLE file) noexcept {
  const Descriptor descriptor(file);
  if (descriptor.memory == nullptr || descriptor.owner == nullptr) return false;
  for (const TOKEN_INFORMATION_CLASS fact : {TokenUser, TokenOwner}) {
    const TokenFact ours(fact);
    if (ours.sid() != nullptr && ::EqualSid(ours.sid(), descriptor.owner) != 0) return true;
  }
  return false;
}

bool others_may_write(HANDLE file) noexcept {
  const Descriptor descriptor(file);
  if (descriptor.memory == nullptr || descriptor.list == nullptr) return true;
  for (DWORD i = 0; i < descriptor.list->AceCount; ++i) {
    void* entry = nullptr;
    if (::GetAce(descriptor.list, i, &entry) == 0) return true;
    auto* allowed = static_cast<ACCESS_ALLOWED_ACE*>(entry);
    if (allowed->Header.AceType != ACCESS_ALLOWED_ACE_TYPE ||
        (allowed->Header.AceFlags & INHERIT_ONLY_ACE) != 0)
      continue;
    constexpr DWORD kWriting =
        FILE_WRITE_DATA | FILE_APPEND_DATA | WRITE_DAC | WRITE_OWNER | GENERIC_WRITE | GENERIC_ALL;
    if ((allowed->Mask & kWriting) != 0 && is_everybody(&allowed->SidStart)) return true;
  }
  return false;
}

OwnAccess::OwnAccess() noexcept {
  const TokenFact user(TokenUser);
  LPWSTR text = nullptr;
  if (user.sid() == nullptr || ::ConvertSidToStringSidW(user.sid(), &text) == 0) return;
  // Protected from the folder's list; full access for the user and the system, for all that is
  // made inside, too.
  std::array<wchar_t, 256> sddl{};
  const int count =
      std::swprintf(sddl.data(), sddl.size(), L"D:P(A;OICI;FA;;;%ls)(A;OICI;FA;;;SY)", text);
  ::LocalFree(text);
  if (count > 0)
    ::ConvertStringSecurityDescriptorToSecurityDescriptorW(
        sddl.data(), SDDL_REVISION_1, &attributes_.lpSecurityDescriptor, nullptr);
}

OwnAccess::~OwnAccess() { ::LocalFree(attributes_.lpSecurityDescriptor); }

SECURITY_ATTRIBUTES* OwnAccess::attributes() const noexcept {
  return attributes_.lpSecurityDescriptor != nullptr ? &attributes_ : nullptr;
}

}  // namespace fulmen::platform
