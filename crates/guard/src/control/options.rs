//! What the options mean for the policy, and what is said of them.

use super::*;

impl Control {
    /// What the policy is to know of this host and of the user's options.
    pub(super) fn host(&self) -> Host {
        let off = |what: Ablate| self.opts.ablate.contains(&what);
        let ring = self.interfaces.iter().filter(|i| i.state == State::Guarded).map(|i| i.ring).min();
        let usual = Host::default();
        Host {
            ring: ring.unwrap_or(usual.ring),
            reserve: 10 * u16::from(self.opts.reserve),
            quota: if off(Ablate::Quota) { QUOTA_OFF } else { u32::from(self.opts.quota) },
            lent_quota: u32::from(self.opts.lent_quota),
            period: match self.opts.period {
                Period::Fixed(d) => Some(d.as_nanos() as Nanos),
                Period::Auto => None,
            },
            high: 10 * u16::from(self.opts.high),
            low: 10 * u16::from(self.opts.low),
            timeout: self.opts.timeout.as_nanos() as Nanos,
            flush: self.opts.flush.as_nanos() as Nanos,
            look: 10 * u16::from(self.opts.look),
            feedback: !off(Ablate::Feedback) && self.gauges.probes.udp_full,
            budget: !off(Ablate::Budget),
            // Who asks for mode poll, or for no release, gets that.
            shed: self.opts.mode == Mode::Auto && !off(Ablate::Release),
            net: self.opts.mode == Mode::Net,
            ..usual
        }
    }
    /// The policy's options.
    pub(super) fn config(&self) -> Config {
        Config::for_host(&self.host())
    }
    pub(super) fn announce(&mut self) {
        let sources: usize = self.interfaces.iter().map(|i| i.sources.len()).sum();
        let cpus: Vec<String> = self.cpus.iter().map(ToString::to_string).collect();
        let thread = self.interfaces.iter().all(|i| i.fallback.is_some());
        crate::out::talk(&format!(
            "weir: guarding {}: {sources} source{} on CPU {}, {}, reserve {} %, quota {}",
            self.opts.interfaces.join(" "),
            if sources == 1 { "" } else { "s" },
            cpus.join(","),
            intent(self.opts.mode, thread),
            self.opts.reserve,
            self.opts.quota,
        ));
        for (subject, text) in self.missing() {
            self.log.line("warning", &subject, &text);
        }
    }
    /// What this guard has to do without, and why; what it stands on first.
    pub fn missing(&self) -> Vec<(String, String)> {
        let refused = self.gauges.probes.refused.iter().map(|why| ("kernel".to_owned(), why.clone()));
        let modes = self.interfaces.iter().filter_map(|i| {
            let text = match (&i.fallback, &i.no_rx) {
                (Some(why), _) => format!("mode thread, no quota, no budget: {why}"),
                (None, Some(why)) => format!("no XDP program ({why}): no shed"),
                (None, None) => return None,
            };
            Some((i.name.clone(), text))
        });
        let left = self.interfaces.iter().filter_map(|i| Some((i.wanted.clone(), i.left?.text())));
        let pollers = self.workers.iter().filter_map(|w| {
            let why = w.refused.as_ref()?;
            Some((format!("CPU {}", w.cpu), format!("no SCHED_FIFO {why}")))
        });
        let netdev = self.access.no_netdev().map(|why| {
            ("kernel".to_owned(), format!("ids are learnt from packets, settings are the device's: {why}"))
        });
        let frozen = self.keeper.lock().is_ok_and(|k| k.as_ref().is_some_and(|k| !k.left_cgroup()));
        let keeper = frozen.then(|| {
            let why = "can be frozen together with this guard: its cgroup does not let it go";
            ("keeper".to_owned(), why.to_owned())
        });
        let gate = self.gate.missing().map(|why| ("gate".to_owned(), why.to_owned()));
        let connections = self.interfaces.iter().find_map(|i| i.rx.as_ref()?.connections().why_not());
        let connections = connections
            .map(|why| ("gate".to_owned(), format!("who has a connection cannot be asked: {why}")));
        let gate = gate.into_iter().chain(connections);
        refused.chain(netdev).chain(modes).chain(left).chain(pollers).chain(keeper).chain(gate).collect()
    }
    /// One line for the service manager.
    pub(super) fn headline(&self) -> String {
        let polled: u32 = self.workers.iter().map(|w| w.gauge.polling.load(Relaxed)).sum();
        let sources: usize = self.interfaces.iter().map(|i| i.sources.len()).sum();
        format!("guarding {}: {polled} of {sources} sources polled", self.opts.interfaces.join(" "))
    }
    pub(super) fn reload(&mut self) {
        let new = match crate::options::Host::here()
            .map_err(anyhow::Error::from)
            .and_then(|host| self.opts.reload(&host))
        {
            Ok(new) => new,
            Err(e) => {
                // The excerpt below the first line is for a terminal, not for a log.
                let why = format!("{e:#}");
                let why = why.lines().next().unwrap_or_default();
                self.log.line("warning", "config", &format!("the old one stays in force: {why}"));
                return;
            }
        };
        let restart = self.opts.need_restart(&new);
        let old = std::mem::replace(&mut self.opts, new);
        self.opts.keep_until_restart(old);
        self.consumers.set_low(&self.gauges, u32::from(self.opts.low) * 10);
        if let Err(e) = self.gauges.set_rules(&self.opts.classes) {
            self.log.line("warning", "config", &format!("the old classes stay in force: {e}"));
        }
        self.watch_cpus();
        self.tune_net();
        let config = self.config();
        for worker in &self.workers {
            let _ = worker.commands.send(Command::Configure(config));
        }
        let rest = match restart.len() {
            0 => String::new(),
            n => format!(
                ", but for {}: restart the guard for {}",
                restart.join(", "),
                if n == 1 { "it" } else { "them" }
            ),
        };
        self.log.line("reload", "config", &format!("in force{rest}"));
    }

    /// Datagrams that were steered to handles of the interface whose first source this is.
    pub fn steered(&self, first_slot: usize) -> u64 {
        self.steering.as_ref().map_or(0, |s| s.taken(first_slot))
    }
}

/// What a guard that has just started does and will do; `thread`: it can poll none of its interfaces.
fn intent(mode: Mode, thread: bool) -> &'static str {
    match mode {
        Mode::None => "only watching",
        Mode::Thread => "receives in kernel threads",
        Mode::Shed => "sheds at the gate, never polls",
        Mode::Auto | Mode::Poll | Mode::Net if thread => "receives in kernel threads",
        Mode::Auto | Mode::Poll => "watching, will poll under overload",
        Mode::Net => "polls from a thousand packets a second on",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_that_has_just_started_does_not_say_that_it_polls() {
        for mode in [Mode::Auto, Mode::Poll] {
            assert_eq!(intent(mode, false), "watching, will poll under overload");
            assert_eq!(intent(mode, true), "receives in kernel threads");
        }
        for mode in [Mode::Thread, Mode::Shed, Mode::None] {
            assert!(!intent(mode, false).contains("will poll"), "{mode:?}");
        }
    }
}
