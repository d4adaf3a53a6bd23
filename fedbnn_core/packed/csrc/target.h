/* Compile what follows for FBNN_TARGET, whatever the command line says. */
#define FBNN_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define FBNN_FOR(isa)                                                                  \
    FBNN_PRAGMA(clang attribute push(__attribute__((target(isa))), apply_to = function))
#else
#define FBNN_FOR(isa) FBNN_PRAGMA(GCC target(isa))
#endif
