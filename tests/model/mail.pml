/*
 * shm/mail.h: two ranks send each other messages of one or two pieces through
 * the slots of their boxes; one of them may die before any of its steps.
 *
 * Each rank sends N_MESSAGES and receives as many, moving either whenever it
 * can (client/rank/transfers.c); so both may send first. A slot of a sender
 * holds the number of a piece, or TORN while it is written. The head of a
 * message is in its first piece. A receiver must not forget to ring for room,
 * nor a sender for a piece: a rank that can move nothing looks, counts itself
 * as sleeper, looks again and sleeps (bell.h).
 *
 * Checked: a piece that is read is whole, and is the next one; a message has
 * the size that its sender gave it; and nobody sleeps for ever.
 *
 * Mutations:
 *   COUNT_FIRST   counts a piece as sent, then writes it
 *   TAKE_FIRST    counts a piece as received, then reads it
 *   NO_ROOM       writes a piece whether there is room or not
 *   LATE_ROOM     writes one piece more than there are slots
 *   SILENT_SENT   does not ring when it has sent
 *   SILENT_ROOM   does not ring when it has received
 *   SLEEP_LATE    looks before it counts itself as sleeper
 *   SEND_ALL      receives nothing before it has sent everything
 *   DEAF          does not look at the verdict
 */
#define N 2
#define SLOTS 2
#ifndef N_MESSAGES
#define N_MESSAGES 2
#endif
#define TORN 255
/* Messages have one and two pieces in turns; a rank's begins with `first`. */
#define PIECES(r, m) (((r) + (m)) % 2 + 1)

byte sent[N], received[N];      /* words: pieces to, and from, the other */
byte number[N * SLOTS], head[N * SLOTS];
byte bell[N], sleepers[N];
bool asleep[N];                 /* in the kernel */
bool verdict, is_mortal;
byte n_dead, n_ended;

#define OTHER (1 - me)
#define SLOT(r, p) ((r) * SLOTS + (p) % SLOTS)

#ifdef DEAF
#define OVER false
#else
#define OVER verdict
#endif

/* Does this rank see room for a piece, and a piece for itself? */
#ifdef LATE_ROOM
#define HAS_ROOM (n_sent - received[OTHER] < SLOTS + 1)
#else
#ifdef NO_ROOM
#define HAS_ROOM true
#else
#define HAS_ROOM (n_sent - received[OTHER] < SLOTS)
#endif
#endif
#define HAS_COME (sent[OTHER] != n_received)

#define CAN_SEND (s_message < N_MESSAGES && HAS_ROOM)
#ifdef SEND_ALL
#define CAN_RECEIVE (s_message == N_MESSAGES && r_message < N_MESSAGES && HAS_COME)
#else
#define CAN_RECEIVE (r_message < N_MESSAGES && HAS_COME)
#endif
#define IS_DONE (s_message == N_MESSAGES && r_message == N_MESSAGES)

inline may_die()
{
	if
	:: atomic { is_mortal && n_dead == 0 -> n_dead++; goto ended }
	:: true
	fi
}

/* bell_ring() of the other's bell. */
inline ring()
{
	if
	:: sleepers[OTHER] > 0 ->
		bell[OTHER]++;
		may_die();
		asleep[OTHER] = false
	:: else
	fi
}

inline write()
{
	number[SLOT(me, n_sent + 1)] = TORN;
	may_die();
	if
	:: s_piece == 0 ->
		head[SLOT(me, n_sent + 1)] = PIECES(me, s_message)
	:: else
	fi;
	number[SLOT(me, n_sent + 1)] = n_sent + 1
}

inline send()
{
#ifdef COUNT_FIRST
	sent[me] = n_sent + 1;
	write();
#else
	write();
	may_die();
	sent[me] = n_sent + 1;
#endif
	d_step {
		n_sent++;
		s_piece++;
		if
		:: s_piece == PIECES(me, s_message) -> s_piece = 0; s_message++
		:: else
		fi
	};
	may_die();
#ifndef SILENT_SENT
	ring()
#else
	skip
#endif
}

inline read()
{
	assert(number[SLOT(OTHER, n_received + 1)] == n_received + 1);
	if
	:: r_piece == 0 ->
		r_size = head[SLOT(OTHER, n_received + 1)];
		assert(r_size == PIECES(OTHER, r_message))
	:: else
	fi;
	may_die();
	assert(number[SLOT(OTHER, n_received + 1)] == n_received + 1)
}

inline receive()
{
#ifdef TAKE_FIRST
	received[me] = n_received + 1;
	read();
#else
	read();
	received[me] = n_received + 1;
#endif
	d_step {
		n_received++;
		r_piece++;
		if
		:: r_piece == r_size -> r_piece = 0; r_message++
		:: else
		fi
	};
	may_die();
#ifndef SILENT_ROOM
	ring()
#else
	skip
#endif
}

/* Nothing can be moved. A rank that has sent all and only waits for its
 * messages sleeps by the same bell. */
inline rest()
{
	seen = bell[me];
#ifdef SLEEP_LATE
	if
	:: CAN_SEND || CAN_RECEIVE || OVER -> goto awake
	:: else
	fi;
	sleepers[me]++;
#else
	sleepers[me]++;
	may_die();
	if
	:: CAN_SEND || CAN_RECEIVE || OVER -> goto up
	:: else
	fi;
#endif
	/* The kernel compares the word. */
	atomic {
		if
		:: bell[me] == seen -> asleep[me] = true
		:: else
		fi
	};
	!asleep[me];
up:
	sleepers[me]--;
awake:
	skip
}

proctype rank(byte me)
{
	byte n_sent, n_received;   /* private counts: pieces */
	byte s_message, s_piece;   /* being sent */
	byte r_message, r_piece, r_size;
	byte seen;

	do
	:: OVER -> break
	:: IS_DONE -> break
	:: CAN_SEND -> send()
	:: CAN_RECEIVE -> receive()
	:: !CAN_SEND && !CAN_RECEIVE && !IS_DONE && !OVER -> rest()
	od;
ended:
	n_ended++
}

/* It sees a death, and nothing else: says so and rings always. */
proctype broker()
{
	byte i;

	if
	:: n_dead > 0 ->
		verdict = true;
		do
		:: i < N -> bell[i]++; asleep[i] = false; i++
		:: else -> break
		od
	:: n_ended == N && n_dead == 0
	fi
}

init {
	atomic {
		if
		:: is_mortal = true
		:: skip
		fi;
		run broker();
		run rank(0);
		run rank(1)
	}
}
