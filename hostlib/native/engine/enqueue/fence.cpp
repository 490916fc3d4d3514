#include "enqueue/fence.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace ringstep {
namespace {

template <class T>
T load(const T& word) {
    return __atomic_load_n(&word, __ATOMIC_ACQUIRE);
}

void store(std::uint64_t& word, std::uint64_t value) {
    __atomic_store_n(&word, value, __ATOMIC_RELEASE);
}

// Where the plugin looks too; empty where the job's name is none.
std::string file_path() {
    const char* folder = std::getenv("RINGSTEP_SHM_DIR");
    const char* job = std::getenv("RINGSTEP_JOB");
    const std::string_view name = job != nullptr && *job != 0 ? job : "default";
    constexpr std::string_view kLetters =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    if (name.front() == '.' || name.size() > 64 ||
        name.find_first_not_of(kLetters) != std::string_view::npos) {
        return {};
    }
    const std::string base = folder != nullptr && *folder != 0
                                 ? std::string(folder)
                                 : "/dev/shm/ringstep-" + std::to_string(geteuid());
    return base + "/" + std::string(name) + ".shm";
}

// The plugin has judged the file already (layout, token, owner): a slot with this process in it is
// the proof. What is checked here is what would make reading it unsafe.
rs_file* map_file() {
    const std::string path = file_path();
    if (path.empty()) return nullptr;
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return nullptr;
    struct stat info;
    void* at = MAP_FAILED;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
        (info.st_uid == geteuid() || info.st_uid == 0) &&
        static_cast<std::size_t>(info.st_size) == sizeof(rs_file) &&
        static_cast<std::size_t>(info.st_blocks) * 512 >= sizeof(rs_file)) {
        at = mmap(nullptr, sizeof(rs_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    close(fd);
    if (at == MAP_FAILED) return nullptr;
    auto* file = static_cast<rs_file*>(at);
    const char* token = std::getenv("RINGSTEP_SHM_TOKEN");
    const std::uint64_t wanted = token != nullptr ? std::strtoull(token, nullptr, 16) : 0;
    const rs_header& header = file->header;
    if (header.magic == RS_SHM_MAGIC && header.layout == RS_SHM_LAYOUT && load(header.ready) == 1 &&
        header.file_size == sizeof(rs_file) && (wanted == 0 || header.job_token == wanted)) {
        return file;
    }
    munmap(at, sizeof(rs_file));
    return nullptr;
}

rs_rank_slot* find_slot(rs_file& file, const Comm& comm) {
    const auto pid = static_cast<std::uint32_t>(getpid());
    for (rs_comm& block : file.comms) {
        const std::uint32_t state = load(block.state);
        if (state != RS_COMM_FILLING && state != RS_COMM_FULL) continue;
        if (block.comm_id != comm.id()) continue;
        if (block.n_ranks != static_cast<std::uint32_t>(comm.n_ranks())) continue;
        for (rs_rank_slot& slot : block.ranks) {
            if (load(slot.state) == RS_SLOT_ATTACHED && slot.pid == pid &&
                slot.rank == static_cast<std::uint32_t>(comm.rank())) {
                return &slot;
            }
        }
    }
    return nullptr;
}

struct Proposal {
    std::uint64_t epoch;
    std::uint64_t digest;
    bool operator==(const Proposal&) const = default;
};

}  // namespace

Fence::~Fence() {
    if (file_ != nullptr) munmap(file_, sizeof(rs_file));
}

void Fence::find(const Comm& comm) {
    file_ = map_file();
    if (file_ == nullptr) return;
    slot_ = find_slot(*file_, comm);
    if (slot_ != nullptr) return;
    munmap(file_, sizeof(rs_file));
    file_ = nullptr;
}

void Fence::pass(Comm& comm) {
    Proposal mine = {};
    std::uint64_t before = 0;
    if (slot_ != nullptr) {
        before = load(slot_->fence) & ~RS_FENCE_HOLD;
        store(slot_->fence, before | RS_FENCE_HOLD);
        mine = {load(slot_->ack_epoch), load(slot_->ack_digest)};
    }
    std::vector<Proposal> all(static_cast<std::size_t>(comm.n_ranks()));
    try {
        comm.exchange(&mine, all.data(), sizeof mine);
    } catch (...) {
        // The communicator is broken; whatever comes must not find the hold bit for ever.
        if (slot_ != nullptr) store(slot_->fence, before);
        throw;
    }
    if (slot_ == nullptr) return;
    const bool agreed = std::all_of(all.begin(), all.end(),
                                    [&](const Proposal& one) { return one == all.front(); });
    const bool newer = mine.epoch > std::max<std::uint64_t>(before, load(slot_->in_force));
    store(slot_->fence, agreed && newer ? mine.epoch : before);
}

}  // namespace ringstep
