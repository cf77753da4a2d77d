//! weir-guard: the guard and its keeper alone, which `weir guard` runs. What runs with capabilities has nothing of the lab, the
//! simulator, the pages and the terminal view inside.

fn main() -> std::process::ExitCode {
    guard::program::main()
}
