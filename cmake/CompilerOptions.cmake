# fulmen_options: what every target of this project is compiled with. Third-party sources do not get
# it.
add_library(fulmen_options INTERFACE)
target_compile_options(fulmen_options INTERFACE -Wall -Wextra $<$<BOOL:${FULMEN_WERROR}>:-Werror>)
target_include_directories(fulmen_options INTERFACE ${PROJECT_SOURCE_DIR}/include
  ${PROJECT_SOURCE_DIR}/src)

if(FULMEN_SANITIZE)
  # Global, so that googletest is instrumented as well: mixed std containers give false reports
  # otherwise.
  add_compile_options(-fsanitize=${FULMEN_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${FULMEN_SANITIZE})
endif()
