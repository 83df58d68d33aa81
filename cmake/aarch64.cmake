# Cross-compiles for 64-bit ARM with Debian's compiler, against libraries that scripts/test_arm64.sh has unpacked; what is
# built runs under qemu.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++-12)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

get_filename_component(root ${CMAKE_CURRENT_LIST_DIR}/../build/arm64-root ABSOLUTE)
set(libraries ${root}/usr/lib/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${root})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
foreach(mode LIBRARY INCLUDE PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${mode} ONLY)
endforeach()
set(ENV{PKG_CONFIG_LIBDIR} ${libraries}/pkgconfig:${root}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${root})
set(CMAKE_CXX_FLAGS_INIT "-isystem ${root}/usr/include")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-L${libraries} -Wl,-rpath-link,${libraries}")
set(CMAKE_CROSSCOMPILING_EMULATOR
    qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=${libraries})
