// Ringstep's data plane on Tofino 2 (T2NA): the tables, actions and counters of the v1model program
// under the same names.
//
// Ingress finds a packet's job and its way; egress, where the queue depth is known, runs RED and the
// marker and sets CE. The marker's rule is that of ringstep.protocol.marker; docs/tofino2.md tells
// where this program comes only near to it. -DRINGSTEP_UEC adds Ultra Ethernet;
// -DRINGSTEP_MARKER_ONLY compiles the marker alone.

#include <core.p4>
#include <t2na.p4>

#include "include/t2na/types.p4"
#include "include/t2na/log2.p4"
#include "include/t2na/marker.p4"
#ifdef RINGSTEP_MARKER_ONLY
#include "include/t2na/marker_only.p4"
#else
#include "include/t2na/parser.p4"
#include "include/t2na/classify.p4"
#include "include/t2na/routing.p4"
#include "include/t2na/red.p4"
#include "include/t2na/switch.p4"
#endif

Pipeline(RingstepIngressParser(),
         RingstepIngress(),
         RingstepIngressDeparser(),
         RingstepEgressParser(),
         RingstepEgress(),
         RingstepEgressDeparser()) pipe;

Switch(pipe) main;
