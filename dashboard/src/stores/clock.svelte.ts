// The time, once a second, for everything that counts up or down.

class Clock {
  now_ms = $state(Date.now());

  constructor() {
    setInterval(() => (this.now_ms = Date.now()), 1000);
  }
}

export const clock = new Clock();
