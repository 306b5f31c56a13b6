//! [`App`]: the state of the interface, without a terminal, and how keys change it.

use super::Checkpoint;
use super::outline::{Kind, Outline};
use super::values::{Job, KnownFacts};
use crate::commands::stats::Facts;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// A request to the program around the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Nothing,
    Compute(usize),
    Suspend,
    Quit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Focus {
    Tree,
    Details,
    Search,
    Help,
}

pub(super) struct App<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) outline: Outline<'a>,
    pub(super) row: usize,
    pub(super) top: usize,
    /// The height in the last frame.
    pub(super) page: usize,
    pub(super) details_page: usize,
    pub(super) details_len: usize,
    pub(super) scroll: usize,
    /// Whether the details are scrolled to the statistics, until the user scrolls or moves on.
    pub(super) is_at_statistics: bool,
    pub(super) focus: Focus,
    pub(super) query: String,
    // Letters may come faster than a search in many names ends, so it waits for the next frame.
    is_query_new: bool,
    pub(super) found: u64,
    before_search: usize,
    pub(super) known: KnownFacts,
    pub(super) job: Option<Job>,
}

impl<'a> App<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint, outline: Outline<'a>) -> Self {
        Self {
            checkpoint,
            outline,
            row: 0,
            top: 0,
            page: 1,
            details_page: 1,
            details_len: 0,
            scroll: 0,
            is_at_statistics: false,
            focus: Focus::Tree,
            query: String::new(),
            is_query_new: false,
            found: 0,
            before_search: 0,
            known: KnownFacts::default(),
            job: None,
        }
    }

    pub(super) fn selected(&self) -> usize {
        self.outline.at(self.row)
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Wish {
        if key.kind == KeyEventKind::Release {
            return Wish::Nothing;
        }
        // With Alt it is AltGr, which types signs on some keyboards.
        if key.modifiers.contains(KeyModifiers::CONTROL)
            && !key.modifiers.contains(KeyModifiers::ALT)
        {
            return match key.code {
                KeyCode::Char('c') => Wish::Quit,
                KeyCode::Char('z') => Wish::Suspend,
                KeyCode::Char('u') if self.focus == Focus::Search => {
                    self.query.clear();
                    self.is_query_new = true;
                    Wish::Nothing
                }
                KeyCode::Char('d') => self.browse(KeyCode::PageDown),
                KeyCode::Char('u') => self.browse(KeyCode::PageUp),
                _ => Wish::Nothing,
            };
        }
        match self.focus {
            Focus::Help => {
                self.focus = Focus::Tree;
                if key.code == KeyCode::Char('q') { Wish::Quit } else { Wish::Nothing }
            }
            Focus::Search => {
                self.type_query(key.code);
                Wish::Nothing
            }
            Focus::Tree | Focus::Details => self.browse(key.code),
        }
    }

    pub(super) fn paste(&mut self, text: &str) {
        if self.focus == Focus::Search {
            self.query.extend(text.chars().filter(|c| !c.is_control()));
            self.is_query_new = true;
        }
    }

    fn type_query(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char(c) => {
                self.query.push(c);
                self.is_query_new = true;
                return;
            }
            KeyCode::Backspace if !self.query.is_empty() => {
                self.query.pop();
                self.is_query_new = true;
                return;
            }
            _ => self.search_if_new(),
        }
        match key {
            KeyCode::Backspace => self.focus = Focus::Tree,
            KeyCode::Enter | KeyCode::Tab => self.focus = Focus::Tree,
            KeyCode::Esc => {
                self.end_search();
                self.select(self.before_search);
            }
            KeyCode::Down | KeyCode::Up | KeyCode::PageDown | KeyCode::PageUp => {
                self.browse(key);
            }
            _ => {}
        }
    }

    pub(super) fn search_if_new(&mut self) {
        if std::mem::take(&mut self.is_query_new) {
            self.search();
        }
    }

    fn search(&mut self) {
        self.found = self.outline.filter(&self.query);
        self.scroll = 0;
        let first = self.outline.first_shown_from(self.before_search);
        match first.filter(|_| !self.query.is_empty()) {
            Some(first) => self.select(first),
            None => self.select(self.before_search),
        }
    }

    fn end_search(&mut self) {
        self.focus = Focus::Tree;
        self.query.clear();
        self.is_query_new = false;
        self.outline.filter("");
    }

    /// Selects a node, or the closed module that it is in.
    fn select(&mut self, node: usize) {
        self.move_to(self.outline.row_of(node));
    }

    fn move_to(&mut self, row: usize) {
        let before = self.selected();
        self.row = row.min(self.outline.len().saturating_sub(1));
        if self.selected() != before {
            self.scroll = 0;
            self.is_at_statistics = false;
        }
        // A row more is seen above and below, so that one sees where a list goes on.
        self.top = self.top.min(self.row.saturating_sub(1));
        let last = (self.row + 2).min(self.outline.len());
        self.top = self.top.max(last.saturating_sub(self.page));
    }

    /// Fits to a new height. `statistics` is their first line in the details.
    pub(super) fn resize(
        &mut self,
        page: usize,
        details_page: usize,
        details_len: usize,
        statistics: usize,
    ) {
        (self.details_page, self.details_len) = (details_page, details_len);
        if self.is_at_statistics {
            self.scroll = statistics;
        }
        self.scroll = self.scroll.min(details_len.saturating_sub(details_page));
        if self.page != page {
            self.page = page;
            self.move_to(self.row);
        }
        // No blank rows below a list that is longer than the screen.
        self.top = self.top.min(self.outline.len().saturating_sub(page));
    }

    fn browse(&mut self, key: KeyCode) -> Wish {
        match key {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Char('?') | KeyCode::F(1) => self.focus = Focus::Help,
            KeyCode::Char('/') => {
                self.before_search = self.selected();
                self.focus = Focus::Search;
                self.search();
            }
            KeyCode::Char('s') => return self.ask_for_values(),
            KeyCode::Tab | KeyCode::BackTab => {
                let is_tree = self.focus == Focus::Tree;
                self.focus = if is_tree { Focus::Details } else { Focus::Tree };
            }
            KeyCode::Esc => self.escape(),
            _ if self.focus == Focus::Details => self.scroll_details(key),
            _ => self.move_in_tree(key),
        }
        Wish::Nothing
    }

    /// Leaves the innermost of work, details and search.
    fn escape(&mut self) {
        if let Some(job) = self.job.take() {
            job.cancel();
        } else if self.focus == Focus::Details {
            self.focus = Focus::Tree;
        } else if !self.query.is_empty() {
            let selected = if self.found > 0 { self.selected() } else { self.before_search };
            self.end_search();
            // The found node stays selected.
            self.outline.reveal(selected);
            self.select(selected);
        }
    }

    fn ask_for_values(&mut self) -> Wish {
        let node = self.selected();
        if !matches!(self.outline.node(node).kind, Kind::Tensor(..)) {
            return Wish::Nothing;
        }
        self.is_at_statistics = true;
        let is_under_way = self.job.as_ref().is_some_and(|job| job.node == node);
        if is_under_way || self.known.contains_key(&node) {
            return Wish::Nothing;
        }
        if let Some(job) = self.job.take() {
            job.cancel();
        }
        Wish::Compute(node)
    }

    pub(super) fn take_values(&mut self, node: usize, found: Result<Facts, String>) {
        self.job.take_if(|job| job.node == node);
        self.known.insert(node, found);
    }

    fn scroll_details(&mut self, key: KeyCode) {
        self.is_at_statistics = false;
        let last = self.details_len.saturating_sub(self.details_page);
        let key = if key == KeyCode::Char(' ') { KeyCode::PageDown } else { key };
        if matches!(key, KeyCode::Left | KeyCode::Char('h')) {
            self.focus = Focus::Tree;
        }
        let scroll = moved(key, self.scroll, self.details_page, last);
        self.scroll = scroll.unwrap_or(self.scroll).min(last);
    }

    fn move_in_tree(&mut self, key: KeyCode) {
        let node = self.selected();
        let last = self.outline.len().saturating_sub(1);
        if let Some(row) = moved(key, self.row, self.page, last) {
            return self.move_to(row);
        }
        match key {
            KeyCode::Right | KeyCode::Char('l') => {
                if self.outline.is_open(node) {
                    self.move_to(self.row + 1)
                } else {
                    self.set_open(node, true)
                }
            }
            KeyCode::Left | KeyCode::Char('h') => {
                if self.outline.is_open(node) {
                    self.set_open(node, false)
                } else {
                    self.select(self.outline.parent(node))
                }
            }
            KeyCode::Enter | KeyCode::Char(' ') => {
                self.set_open(node, !self.outline.is_open(node));
            }
            KeyCode::Char('o') => {
                self.outline.set_all_open(node, true);
                self.select(node);
            }
            KeyCode::Char('c') => {
                self.outline.set_all_open(node, false);
                self.select(node);
            }
            _ => {}
        }
    }

    fn set_open(&mut self, node: usize, is_open: bool) {
        self.outline.set_open(node, is_open);
        self.select(node);
    }
}

/// Returns the new place, or `None` for a key that does not move.
fn moved(key: KeyCode, at: usize, page: usize, last: usize) -> Option<usize> {
    Some(match key {
        KeyCode::Down | KeyCode::Char('j') => at + 1,
        KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
        KeyCode::PageDown => at + page,
        KeyCode::PageUp => at.saturating_sub(page),
        KeyCode::Home | KeyCode::Char('g') => 0,
        KeyCode::End | KeyCode::Char('G') => last,
        _ => return None,
    })
}
