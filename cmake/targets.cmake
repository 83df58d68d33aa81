# Compiler settings shared by every target, and em_library(): one library a directory.
add_library(em_options INTERFACE)
target_compile_options(em_options INTERFACE -Wall -Wextra -Werror -fno-math-errno)
target_include_directories(em_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_definitions(em_options INTERFACE $<$<CONFIG:Debug>:EM_DEBUG_CHECKS=1>)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL aarch64)
  # What Highway's NEON target asks for: with it as the baseline there is no dispatch. Nothing of ours uses AES.
  target_compile_options(em_options INTERFACE -march=armv8-a+crypto)
endif()
if(ELASTICMEM_SANITIZE)
  target_compile_options(em_options INTERFACE -fsanitize=${ELASTICMEM_SANITIZE} -fno-omit-frame-pointer
                                              -fno-sanitize-recover=all)
  target_link_options(em_options INTERFACE -fsanitize=${ELASTICMEM_SANITIZE})
  # GCC's thread sanitizer does not see Boost.Asio's fences, and -Werror says so.
  target_compile_options(em_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  # GCC's analysis sees uninitialised values that are not there once sanitizers have rewritten the code.
  target_compile_options(em_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()

# em_library(NAME SOURCES a.cc ... DEPS targets... [PRIVATE_DEPS targets...])
function(em_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC em_options ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
endfunction()
