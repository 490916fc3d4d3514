#include "enqueue/library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "core.h"
#include "enqueue/log.h"
#include "nccl_abi.h"

namespace ringstep {

void* Library::open() {
    const char* wanted = std::getenv(variable_);
    if (wanted != nullptr && strcasecmp(wanted, "none") == 0) return nullptr;
    const bool named = wanted != nullptr && *wanted != 0;
    if (named) {
        if (void* found = dlopen(wanted, RTLD_NOW | RTLD_LOCAL)) return found;
        const std::string why = dlerror();
        const std::string beside = std::string(stem_) + "-" + wanted + ".so";
        if (void* found = dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL)) return found;
        nccl_log(RS_LOG_WARN, kInit, __FILE__, __LINE__, "%s: no %s plugin: %s; and no %s",
                 variable_, kind_, why.c_str(), beside.c_str());
        return nullptr;
    }
    return dlopen((std::string(stem_) + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
}

void* Library::acquire() {
    const std::lock_guard hold(lock_);
    if (failed_) return nullptr;
    if (handle_ == nullptr) handle_ = open();
    failed_ = handle_ == nullptr;
    users_ += handle_ != nullptr;
    return handle_;
}

void Library::release() {
    const std::lock_guard hold(lock_);
    if (--users_ > 0 || handle_ == nullptr) return;
    dlclose(handle_);
    handle_ = nullptr;
}

void Library::reject() {
    release();
    const std::lock_guard hold(lock_);
    failed_ = true;
}

int wanted_abi(const char* variable, int oldest, int newest) {
    const char* text = std::getenv(variable);
    if (text == nullptr || *text == 0) return 0;
    char* end = nullptr;
    const long version = std::strtol(text, &end, 10);
    if (*end != 0 || version < oldest || version > newest) {
        throw Error(RE_BAD_ARGUMENT, std::string(variable) + "=" + text + ": " +
                                         std::to_string(oldest) + " to " + std::to_string(newest));
    }
    return static_cast<int>(version);
}

}  // namespace ringstep
