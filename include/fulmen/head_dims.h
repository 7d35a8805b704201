/* How wide a head may be, for C and C++. */
#ifndef FULMEN_HEAD_DIMS_H
#define FULMEN_HEAD_DIMS_H

#define FULMEN_MAX_HEAD_DIM 576   /* elements of a head of q and k: 1 to as many */
#define FULMEN_MAX_HEAD_DIM_V 512 /* and of v */

#endif
