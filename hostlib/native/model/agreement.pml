/* The agreement of docs/agreement.md, for spin.
 *
 *   spin -run [-DFENCED | -DCAPTURE] [-DN=3] [-DBUG_...] agreement.pml
 *
 * Invariant: no two ranks apply different decisions at the same collective index of a communicator.
 *
 * What the network and the skeleton of the coordinator do to a node is modelled as the worst there
 * can be: the node's stub is told anything, in any order, any number of times. That covers messages
 * lost, delayed and duplicated, and a skeleton that dies and starts anew. The stub itself may die
 * between any two of its steps (`goto top`: a new one starts with what the file holds); a rank may die anywhere.
 *
 * Planted bugs, each of which has to be found: BUG_NO_ACKS, BUG_FIRST_LOW, BUG_RAW_CALLS,
 * BUG_NO_FREEZE (with CAPTURE), BUG_NO_HOLD, BUG_EPOCH_ONLY and BUG_STALE_ACK (with FENCED). */

#ifndef RANKS
#define RANKS 2      /* ranks */
#endif
#ifndef LAST
#define LAST 3   /* collectives, indices 0 .. LAST-1 */
#endif
#ifndef EPOCHS
#define EPOCHS 2 /* announced at most */
#endif
#define NONE 255
#define FROZEN 100

byte decided[LAST];   /* decision in force at an index, NONE while nobody applied one */

inline apply(index, decision) {
    d_step {
        if
        :: decided[index] == NONE -> decided[index] = decision
        :: else -> assert(decided[index] == decision)
        fi
    }
}

#ifndef FENCED
/* ---------------------------------------------------------------- one node, a shared gate */

byte header_epoch;            /* survives a stub */
byte announced, bank_epoch;
bool bank_odd;                /* the sequence lock, its parity ... */
byte bank_count;              /* ... and how often the table was written */
byte gate_epoch, gate_index;  /* one 64-bit word: both change in one step */
byte first_index;
byte ack[RANKS];

/* One getCollInfo: enter the gate, apply, acknowledge what is on offer. */
inline call(me, clock, index) {
    d_step {
        seen = gate_epoch;
        if
        :: gate_index <= clock -> gate_index = clock + 1
        :: else
        fi
    }
    if
    :: seen != current && seen == held ->
        if
        :: clock >= first_index -> current = held; held = 0
        :: else
        fi
    :: else
    fi;
    apply(index, current);
    offer = announced;
    if
    :: offer != 0 && offer != held && offer > current ->
        if
        :: gate_epoch == current ->
            d_step { count = bank_count; odd = bank_odd; held = 0 };
            copy = bank_epoch;
            if
            :: !odd && !bank_odd && count == bank_count && copy == offer ->
                held = offer; ack[me] = offer
            :: else
            fi
        :: else
        fi
    :: else
    fi;
    d_step { seen = 0; offer = 0; copy = 0; count = 0; odd = false } /* fewer states, no meaning */
}

proctype Rank(byte me) {
    byte index = 0;   /* the truth: collectives launched */
    byte clock = 0;   /* what the plugin counts */
    byte current = 0, held = 0, seen, offer, copy, count;
    bool odd, extra = (me == 0);
    do
    :: index < LAST ->
        if
        :: true
        :: true -> goto dead
        fi;
#ifdef CAPTURE
        /* Every rank captures a graph at index 1; from then on launches are counted late. */
        if
        :: index == 1 ->
#ifndef BUG_NO_FREEZE
            gate_index = FROZEN
#else
            skip
#endif
        :: else
        fi;
#endif
        call(me, clock, index);
        if
        :: extra -> /* ncclGroupSimulateEnd on one rank: a call and no launch */
            extra = false;
#ifdef BUG_RAW_CALLS
            clock++;
#endif
            call(me, clock, index)
        :: true
        fi;
        d_step {
            index++;
#ifndef CAPTURE
            clock++
#endif
        };
#ifdef CAPTURE
        if
        :: index <= 1 -> clock = index
        :: index > 1 -> /* late: any number up to the truth */
            do
            :: clock < index -> clock++
            :: break
            od
        fi;
#endif
    :: else -> break
    od;
dead:
    skip
}

proctype Stub() {
    byte epoch, seen_epoch, first, i;
top:
    skip;
    d_step { epoch = 0; seen_epoch = 0; first = 0; i = 0 };
    do
    :: header_epoch < EPOCHS -> /* announce */
        d_step { header_epoch++; epoch = header_epoch };
        announced = 0;
        bank_odd = true;
        if :: goto top :: true fi;
        bank_epoch = epoch;
        if :: goto top :: true fi;
        d_step { bank_count++; bank_odd = false };
        announced = epoch;
        goto top
    :: announced != 0 -> /* abandon; never what is committed */
        epoch = announced;
        if
        :: gate_epoch != epoch -> announced = 0
        :: else
        fi;
        goto top
    :: announced != 0 -> /* commit */
        epoch = announced;
        d_step { seen_epoch = gate_epoch; first = gate_index };
        if
        :: seen_epoch == epoch -> goto top
        :: else
        fi;
#ifndef BUG_NO_ACKS
        i = 0;
        do
        :: i < RANKS ->
            if
            :: ack[i] == epoch -> i++
            :: else -> goto top
            fi
        :: i == RANKS -> break
        od;
#endif
        if :: goto top :: true fi;
again:
        if
        :: first == FROZEN -> goto top
        :: else
        fi;
#ifdef BUG_FIRST_LOW
        first_index = (first > 0 -> first - 1 : 0);
#else
        first_index = first;
#endif
        if :: goto top :: true fi;
        d_step { /* compare and swap */
            if
            :: gate_epoch == seen_epoch && gate_index == first -> gate_epoch = epoch; i = 1
            :: else -> first = gate_index; i = 0
            fi
        };
        if
        :: i == 0 && gate_epoch == seen_epoch -> goto again
        :: else -> goto top
        fi
    od
}

init {
    byte i;
    atomic {
        for (i : 0 .. LAST - 1) { decided[i] = NONE }
        for (i : 0 .. RANKS - 1) { run Rank(i) }
        run Stub()
    }
}

#else
/* ------------------------------------------------- several nodes, the job's own collective */

/* What a node was told: an epoch and a content. Two nodes may be told different contents under one
 * epoch, for instance by a skeleton that forgot what it had said. */
#define PAIR(e, c) ((e) * 4 + (c))

byte held_epoch[RANKS], held_content[RANKS];   /* the rank's own copy, 0 = none */
byte acked_epoch[RANKS], acked_content[RANKS]; /* what its slot says of it */
byte newest[RANKS];                            /* epoch that the node's file has offered */
bool hold[RANKS];
byte fence[RANKS];
byte proposal[RANKS], proposed_epoch[RANKS];
bool here[RANKS], there[RANKS];

inline call(me, index) {
    if
    :: held_epoch[me] != 0 && fence[me] == held_epoch[me] && fence[me] > current / 4 ->
        current = PAIR(held_epoch[me], held_content[me])
    :: else
    fi;
    apply(index, current)
}

/* Acknowledge anything newer that the node's file may hold; or begin to, give up the copy held until
 * then, and find the offer half written or not usable. */
inline acknowledge(me) {
    if
    :: skip
#ifndef BUG_NO_HOLD
    :: !hold[me] && newest[me] < EPOCHS ->
#else
    :: newest[me] < EPOCHS ->
#endif
        d_step { newest[me]++; held_epoch[me] = newest[me] }
        if
        :: held_content[me] = 1
        :: held_content[me] = 2
        fi;
        d_step { acked_epoch[me] = held_epoch[me]; acked_content[me] = held_content[me] }
    :: !hold[me] && newest[me] < EPOCHS ->
        d_step {
            newest[me]++;
            held_epoch[me] = 0;
#ifndef BUG_STALE_ACK
            acked_epoch[me] = 0
#endif
        }
    fi
}

/* A collective that the job does among its ranks: nobody is past it before everybody was in it. */
inline exchange(me) {
    here[me] = true;
    (here[0] && here[1]);
    same = (proposal[0] == proposal[1] && proposal[0] != 0);
#ifdef BUG_EPOCH_ONLY
    same = (proposed_epoch[0] == proposed_epoch[1] && proposed_epoch[0] != 0);
#endif
    there[me] = true;
    (there[0] && there[1])
}

proctype Rank(byte me) {
    byte index = 0, current = 0;
    bool same, fenced = false;
    do
    :: index < LAST ->
        if
        :: true
        :: true -> goto dead
        fi;
        call(me, index);
        acknowledge(me); /* only in a call, after the table in force is settled */
        index++;
        if
        :: index == 2 && !fenced -> /* the program's fence, between the same collectives */
            fenced = true;
            d_step { hold[me] = true };
            d_step {
                proposal[me] = (acked_epoch[me] -> PAIR(acked_epoch[me], acked_content[me]) : 0);
                proposed_epoch[me] = acked_epoch[me]
            };
            acknowledge(me); /* the exchange itself asks the plugin */
            exchange(me);
            if
            :: same -> fence[me] = acked_epoch[me]
            :: else
            fi;
            hold[me] = false
        :: else
        fi
    :: else -> break
    od;
dead:
    skip
}

init {
    byte i;
    atomic {
        for (i : 0 .. LAST - 1) { decided[i] = NONE }
        for (i : 0 .. RANKS - 1) { run Rank(i) }
    }
}
#endif
