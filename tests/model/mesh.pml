/*
 * shm/gathers.h: ranks reshard gathers of one group to a smaller mesh or to
 * none, each at its own pace, and compare what others gave.
 *
 * Checked: ranks that do the same are never refused, however far one is ahead.
 * A rank that gives a mesh for the last gather, which others have resharded to
 * none, is refused.
 *
 * Mutations:
 *   WORD_FIRST  looks at the word, then at who has ended the gather
 *   END_FIRST   ends the gather, then writes the word
 *   NO_LOOK     does not look at who has ended it
 */
#ifndef N
#define N 3
#endif
#define N_GATHERS 3

/* 1 1 0 */
#define MESH(n) (n < N_GATHERS)

/* the word of the group; its rank is only for sentences */
byte number, mesh;
byte ended[N]; /* number of the last gather */

byte n_finished;

inline look_at_ended()
{
	atomic { has_other = false; i = 0 };
	do
	:: atomic { i < N && ended[i] >= self -> has_other = true };
		break
	:: atomic { i < N && ended[i] < self -> i++ }
	:: i == N -> break
	od
}

inline look_at_word()
{
	atomic { seen = number; given = mesh }
}

/* `asked` is the mesh that it gives; 0: none. */
inline set_mesh()
{
	has_other = false;
	is_right = true;
#ifdef WORD_FIRST
	look_at_word();
#endif
	do
	:: true ->
#ifndef NO_LOOK
		if
		:: asked -> look_at_ended()
		:: else
		fi;
#endif
#ifndef WORD_FIRST
		look_at_word();
#endif
		if
		:: !asked || has_other || seen >= self -> break
		:: else
		fi;
		if
		:: atomic { number == seen && mesh == given ->
			number = self; mesh = asked };
			break
		:: atomic { !(number == seen && mesh == given) ->
			seen = number; given = mesh }
		fi
	od;
	if
	:: seen < self -> is_right = !has_other
	:: seen == self -> is_right = given == asked
	:: else
	fi
}

proctype rank(byte me)
{
	byte self = 1, asked, i, seen, given;
	bool has_other, is_right;

	do
	:: self <= N_GATHERS ->
		asked = MESH(self);
#ifdef END_FIRST
		ended[me] = self;
		set_mesh();
#else
		set_mesh();
		ended[me] = self;
#endif
		assert(is_right);
		self++
	:: else -> break
	od;
	n_finished++
}

/* It comes last, and is wrong. */
proctype stray()
{
	byte self = N_GATHERS, asked = 1, i, seen, given;
	bool has_other, is_right;

	n_finished == N;
	set_mesh();
	assert(!is_right)
}

init
{
	byte r = 0;

	atomic {
		do
		:: r < N -> run rank(r); r++
		:: else -> break
		od;
		run stray()
	}
}
