//! The threads of the guard and its keeper: how they begin and end.

use super::*;

impl Control {
    /// Starts a keeper that watches `beats`, and puts every journal and handle into its care.
    pub(super) fn start_keeper(&mut self, beats: &kern::keeper::Pulse) -> anyhow::Result<()> {
        let exe = std::env::current_exe().context("the path of weir itself")?;
        // After an upgrade the file that this process runs has no name any more.
        let itself = Path::new("/proc/self/exe");
        let keeper = Keeper::spawn_with(if exe.exists() { &exe } else { itself }, beats)?;
        for interface in &self.interfaces {
            let journal = interface.journal.as_ref().and_then(|j| j.lock().ok());
            if let Some(Err(e)) = journal.map(|j| keeper.journal(&j)) {
                self.log.line("keeper", &interface.name, &format!("{e}"));
            }
        }
        self.gauges.views.guard[0].process[1].store(keeper.pid(), Relaxed);
        if let Ok(mut slot) = self.keeper.lock() {
            *slot = Some(keeper);
        }
        let _ = self.orders.send(Order::NewKeeper);
        Ok(())
    }
    /// Looks whether there is a keeper, and starts another one if not: at each tick until one lives.
    pub(super) fn look_at_keeper(&mut self) {
        let lives = self.keeper.lock().is_ok_and(|mut k| k.as_mut().is_some_and(Keeper::alive));
        if !lives {
            self.replace_keeper("it ended");
        }
    }

    /// Ends a keeper that is lost, and starts another one.
    pub(super) fn replace_keeper(&mut self, why: &str) {
        if let Some(lost) = self.keeper.lock().ok().and_then(|mut k| k.take()) {
            lost.kill();
        }
        self.log.line("warning", "keeper", &format!("{why}; another one is started"));
        let beats = self.beats.clone();
        if let Err(e) = self.start_keeper(&beats) {
            self.log.line("warning", "keeper", &format!("{e:#}"));
        }
    }

    pub(super) fn start_hands(&mut self, orders: Receiver<Order>) -> anyhow::Result<()> {
        let hired = |w: &Worker| Hired {
            cpu: w.cpu,
            commands: w.commands.clone(),
            prod: Arc::clone(&w.prod),
            gauge: Arc::clone(&w.gauge),
        };
        let hands = Hands {
            orders,
            to_self: self.orders.clone(),
            pollers: self.workers.iter().map(hired).collect(),
            beat: Arc::clone(&self.hands_beat),
            reports: self.reports(),
            views: Arc::clone(&self.gauges.views),
            dispatch: Arc::clone(&self.dispatch),
            steering: self.steering.clone(),
            pulse: Arc::clone(&self.pulse),
            keeper: Arc::clone(&self.keeper),
        };
        self.hands = Some(hands.start()?);
        Ok(())
    }
    pub(super) fn reports(&self) -> Reports {
        Reports { to: self.reports.0.clone(), lost: Arc::clone(&self.reports_lost), notify: self.notifier() }
    }
    /// The number that the slowest thread has answered; `None` if one has ended.
    pub(super) fn slowest(&self, watch: Option<&JoinHandle<anyhow::Result<()>>>) -> Option<u64> {
        let alive = |w: &Worker| w.thread.as_ref().is_some_and(|t| !t.is_finished());
        let hands = self.hands.as_ref().is_some_and(|t| !t.is_finished());
        let watches = !watch.is_some_and(JoinHandle::is_finished);
        if !(watches && hands && self.pulse.runs() && self.workers.iter().all(alive)) {
            return None;
        }
        let pollers = self.workers.iter().map(|w| w.gauge.beat.load(Relaxed));
        let watch = watch.map(|_| self.watch_beat.1.load(Relaxed));
        let hands = [self.hands_beat.load(Relaxed)];
        Some(pollers.chain(watch).chain(hands).min().unwrap_or(u64::MAX))
    }
    pub(super) fn start_watch(
        &self,
        stop: &Arc<AtomicBool>,
    ) -> anyhow::Result<JoinHandle<anyhow::Result<()>>> {
        let watch = Watch {
            events: self.gauges.events()?,
            views: Arc::clone(&self.gauges.views),
            dispatch: Arc::clone(&self.dispatch),
            new: self.new_consumers.0.clone(),
            lost: Arc::clone(&self.reports_lost),
            notify: self.notifier(),
            lending: Arc::clone(&self.lending),
            stop: Arc::clone(stop),
            beat: Arc::clone(&self.watch_beat),
        };
        let builder = std::thread::Builder::new().name("weir-watch".into()).stack_size(THREAD_STACK);
        Ok(builder.spawn(move || watch.run())?)
    }
    pub(super) fn notifier(&self) -> Arc<dyn Fn() + Send + Sync> {
        let notify = Arc::clone(&self.notify);
        Arc::new(move || {
            // A full counter is a wake already.
            let _ = notify.write(1);
        })
    }
    pub(super) fn start_worker(&mut self, cpu: usize) -> anyhow::Result<()> {
        let index = self.workers.len();
        let bell = self.gauges.bell(index, cpu)?;
        let (commands, inbox) = mpsc::channel();
        let gauge = Arc::new(Gauge::default());
        gauge.high.store(self.net.as_ref().map_or(0, net::NetCpus::high), Relaxed);
        self.pulse.add(Arc::clone(&gauge));
        let prod = Arc::new(Prod::new(cpu)?);
        let poller = Poller {
            index,
            cpu,
            yielding: self.opts.sched == Sched::Other,
            level_wakes: Arc::clone(&self.level_wakes),
            lending: Arc::clone(&self.lending),
            views: Arc::clone(&self.gauges.views),
            commands: inbox,
            reports: self.reports(),
            orders: self.orders.clone(),
            dispatch: Arc::clone(&self.dispatch),
            prod: Arc::clone(&prod),
            pulse: Arc::clone(&self.pulse),
            gauge: Arc::clone(&gauge),
        };
        let config = self.config();
        let reports = self.reports();
        let builder = std::thread::Builder::new().name(format!("weir-poll-{cpu}")).stack_size(THREAD_STACK);
        let thread = builder.spawn(move || {
            if let Err(e) = poller.run(config, &bell) {
                reports.send(Report::Failed { cpu, why: format!("{e:#}") });
            }
        })?;
        if let Ok(mut dispatch) = self.dispatch.lock() {
            dispatch.add_poller(cpu);
        }
        self.workers.push(Worker {
            cpu,
            class: "starting",
            refused: None,
            gauge,
            commands,
            prod,
            thread: Some(thread),
        });
        Ok(())
    }
    /// Ends the pollers, each of which gives its sources back first; then the hands, who put the settings back.
    pub(super) fn end_workers(&mut self) {
        // By the hands, so that nothing is taken over after it; by this thread too, should they have ended.
        if self.orders.send(Order::Rest).is_err() {
            for worker in &self.workers {
                let _ = worker.commands.send(Command::Stop);
            }
        }
        for thread in self.workers.iter_mut().filter_map(|w| w.thread.take()) {
            let _ = thread.join();
        }
        let _ = self.orders.send(Order::Stop);
        let _ = self.hands.take().map(JoinHandle::join);
        self.pulse.stop();
    }
}
