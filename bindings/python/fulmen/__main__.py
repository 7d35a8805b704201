from fulmen._program import main

main()
