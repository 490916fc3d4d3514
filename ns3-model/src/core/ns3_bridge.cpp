#include "core/ns3_bridge.h"

#include <atomic>
#include <stdexcept>

#include "ns3/event-impl.h"
#include "ns3/heap-scheduler.h"
#include "ns3/make-event.h"
#include "ns3/nstime.h"
#include "ns3/object-factory.h"
#include "ns3/rng-seed-manager.h"
#include "ns3/rng-stream.h"
#include "ns3/simulator.h"

namespace ringstep {

namespace {

std::atomic<bool> claimed{false};
std::int64_t next_event_ns = INT64_MAX;

// ns-3's heap scheduler, which also says when the next event is.
class PeekScheduler : public ns3::HeapScheduler {
  public:
    static ns3::TypeId GetTypeId() {
        static ns3::TypeId tid = ns3::TypeId("ringstep::PeekScheduler")
                                     .SetParent<ns3::HeapScheduler>()
                                     .SetGroupName("Ringstep")
                                     .AddConstructor<PeekScheduler>();
        return tid;
    }
    void Insert(const Event& event) override {
        ns3::HeapScheduler::Insert(event);
        publish();
    }
    Event RemoveNext() override {
        const Event event = ns3::HeapScheduler::RemoveNext();
        publish();
        return event;
    }
    void Remove(const Event& event) override {
        ns3::HeapScheduler::Remove(event);
        publish();
    }

  private:
    void publish() const {
        next_event_ns = IsEmpty() ? INT64_MAX : static_cast<std::int64_t>(PeekNext().key.m_ts);
    }
};

}  // namespace

Ns3Bridge::Ns3Bridge() {
    if (claimed.exchange(true))
        throw std::runtime_error(
            "another simulation is running in this process; run simulations one after the other, "
            "or "
            "in processes of their own");
    next_event_ns = INT64_MAX;
    ns3::ObjectFactory factory;
    factory.SetTypeId(PeekScheduler::GetTypeId());
    ns3::Simulator::SetScheduler(factory);
    executed_at_start_ = ns3::Simulator::GetEventCount();
}

Ns3Bridge::~Ns3Bridge() {
    ns3::Simulator::Destroy();
    next_event_ns = INT64_MAX;
    claimed = false;
}

void Ns3Bridge::schedule_at(std::int64_t time_ns, std::function<void()> action) {
    const std::int64_t delay = time_ns - now_ns();
    ns3::Simulator::Schedule(ns3::NanoSeconds(delay > 0 ? delay : 0), std::move(action));
}

std::int64_t Ns3Bridge::now_ns() const {
    return ns3::Simulator::Now().GetNanoSeconds();
}

const std::int64_t& Ns3Bridge::next_ns() const {
    return next_event_ns;
}

void Ns3Bridge::run() {
    ns3::Simulator::Run();
}

void Ns3Bridge::stop() {
    ns3::Simulator::Stop();
}

std::uint64_t Ns3Bridge::executed() const {
    return ns3::Simulator::GetEventCount() - executed_at_start_;
}

std::uint64_t Ns3Bridge::stream_seed(std::uint32_t seed, std::uint64_t stream) {
    // The generator's state words must lie in 1..2^32 - 210, so the seed is mapped into that.
    ns3::RngStream generator(seed % 4294944442U + 1, stream, 0);
    const auto high = static_cast<std::uint64_t>(generator.RandU01() * 4294967296.0);
    const auto low = static_cast<std::uint64_t>(generator.RandU01() * 4294967296.0);
    return (high << 32) | low;
}

std::string Ns3Bridge::version() {
    return "ns-3.44";
}

}  // namespace ringstep
