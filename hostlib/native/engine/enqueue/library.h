// Finding and opening a plugin's library as NCCL does.
#pragma once

#include <mutex>
#include <string>

namespace ringstep {

// The library of one kind of plugin in this process. As in NCCL there is one at a time, a failed
// load is not tried again, and the last user's release closes it.
class Library {
  public:
    // variable: NCCL_TUNER_PLUGIN; stem: "libnccl-tuner"; kind: for messages.
    Library(const char* variable, const char* stem, const char* kind)
        : variable_(variable), stem_(stem), kind_(kind) {}

    // The handle for dlsym, nullptr where there is none; each success needs a release().
    void* acquire();
    void release();
    // The library has nothing for us: as if it were not there, for good.
    void reject();

  private:
    void* open();

    const char* variable_;
    const char* stem_;
    const char* kind_;
    std::mutex lock_;
    void* handle_ = nullptr;
    int users_ = 0;
    bool failed_ = false;
};

// An ABI version that a test wants in place of the newest: 0 where the variable is not set.
// Throws Error where it is no version between oldest and newest.
int wanted_abi(const char* variable, int oldest, int newest);

}  // namespace ringstep
