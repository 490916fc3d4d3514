// What stands behind Comm: connections, made as algorithms first need them, and waiting on them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core.h"
#include "runtime/bootstrap.h"
#include "runtime/control.h"
#include "runtime/link.h"

namespace ringstep {

enum class LinkKind : std::uint8_t { ring, tree0_up, tree0_down, tree1_up, tree1_down };

struct LinkKey {
    LinkKind kind;
    int channel;
    int peer;
    auto operator<=>(const LinkKey&) const = default;
};

class Communicator final : public Comm {
  public:
    Communicator(int rank, int n_ranks, const re_config& config, std::uint64_t timeout_ns,
                 Joined joined);
    ~Communicator() override;

    int rank() const override { return rank_; }
    int n_ranks() const override { return n_ranks_; }
    int n_nodes() const override { return n_nodes_; }
    std::uint64_t id() const override { return id_; }
    int max_channels() const override { return max_channels_; }
    void exchange(const void* mine, void* all, std::size_t bytes) override;
    void abort() noexcept override;

    // For the progress loop ------------------------------------------------------------------

    // Keeps abort() from taking the communicator down while it is in use.
    std::mutex& use() { return use_; }
    void throw_if_broken();
    // Where it was made before a fork. Asked before use() is: its owner may hold that for good.
    void throw_if_foreign() const;

    // Whether its links are queue pairs of a software RNIC, and connect() waits for the peers.
    bool bridged() const { return !bridge_.empty(); }
    // The next work's header; `chunk_bytes` and the like already final.
    WorkHeader next_header(const Work& work);
    // Makes the links that are missing; all ranks do it for the same work. Over TCP it waits for no
    // peer's call: missing() says whether all have connected.
    void connect(const std::vector<LinkKey>& senders, const std::vector<LinkKey>& receivers,
                 const WorkHeader& header);
    // The first of the receivers that nobody has connected to yet; nullptr: all are there.
    const LinkKey* missing(const std::vector<LinkKey>& receivers) const;
    Sender& sender(const LinkKey& key) { return *senders_.at(key); }
    Receiver& receiver(const LinkKey& key) { return *receivers_.at(key); }
    std::vector<std::uint8_t>& scratch() { return scratch_; }

    // Ring steps of this communicator's life so far.
    std::uint64_t ring_steps = 0;

    // Takes in what happened on the connections; throws Error where the work cannot go on.
    void poll_events(int timeout_ms);
    int epoll() const { return epoll_.get(); }
    void note_progress() {
        progress_ns_ = now_ns();
        told_stalled_ = false;
    }
    void suspect(const LinkLost& lost);
    void throw_if_aborted() const;
    // How long to sleep at most; throws RE_TIMEOUT where nothing moved for too long.
    int patience_ms(const std::function<std::string()>& awaited);

    // The communicator is broken from here on; tells the others.
    void break_down(re_result code, const std::string& why) noexcept;

  private:
    struct Stranger {
        Fd fd;
        std::uint64_t deadline;
        std::vector<std::uint8_t> hello;
    };

    void break_down_aborted() noexcept;
    void exchange_in_use(const void* mine, void* all, std::size_t bytes);
    void watch(Watched& watched, std::uint32_t events);
    void check();
    std::uint64_t grace_end() const;
    void accept_links();
    void welcome(Stranger& stranger);
    void connect_tcp(const std::vector<LinkKey>& senders, const WorkHeader& header);
    void connect_bridge(const std::vector<LinkKey>& senders, const std::vector<LinkKey>& receivers,
                        const WorkHeader& header);
    void add_sender(const LinkKey& key, Fd fd);
    void add_receiver(const LinkKey& key, Fd fd);
    void drain() noexcept;

    const int rank_;
    const int n_ranks_;
    const int n_nodes_;
    const std::uint64_t id_;
    const int max_channels_;
    const std::uint64_t timeout_ns_;
    const std::string bridge_;
    const std::vector<Address> addresses_;

    const std::uint32_t generation_;  // of the process that it belongs to
    std::mutex use_;
    Fd epoll_;
    Watched wake_;  // by abort()
    Watched listener_;
    Watched nobody_;  // strangers wake, nothing more
    Control control_;
    std::map<LinkKey, std::unique_ptr<Sender>> senders_;
    std::map<LinkKey, std::unique_ptr<Receiver>> receivers_;
    std::vector<Stranger> strangers_;
    std::vector<std::uint8_t> scratch_;

    std::atomic<bool> aborted_{false};
    std::optional<Error> broken_;
    std::optional<WorkHeader> current_;
    std::uint32_t sequence_ = 0;
    std::uint64_t progress_ns_ = 0;
    bool told_stalled_ = false;       // to the others, since then
    std::string suspicion_;           // a link that ended, and where it was awaited
    std::uint64_t suspected_ns_ = 0;  // since when a rank seems to be lost; 0: none does
    bool exchanging_ = false;
};

}  // namespace ringstep
