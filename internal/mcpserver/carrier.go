package mcpserver

import "context"

type carrierKey struct{}

// carrier is what the HTTP request of a call makes known to its handler.
type carrier struct {
	ctx      context.Context // ends the call; see WithCarrier
	accepted func()
}

// WithCarrier returns a child of ctx for the HTTP request that carries a call.
// The call's program is killed when life ends, with its cause. The SDK passes
// the values of a request's context to a handler, but its end only in the
// modern protocol; and it stops to send when that context ends, while life can
// end a call that is still to be answered.
//
// Accepted, if not nil, is called once per call, on another goroutine, when its
// arguments have been found good: from then on the answer is a stream.
func WithCarrier(ctx, life context.Context, accepted func()) context.Context {
	return context.WithValue(ctx, carrierKey{}, carrier{life, accepted})
}

// accept tells the carrier, if there is one, that the call goes ahead, and
// returns a context that ends with it. The caller must call done.
func accept(ctx context.Context) (_ context.Context, done func()) {
	c, ok := ctx.Value(carrierKey{}).(carrier)
	if !ok {
		return ctx, func() {}
	}
	// The carrier alone decides, so that the cause is always its own.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) })
	if c.accepted != nil {
		c.accepted()
	}
	return ctx, func() { stop(); cancel(nil) }
}
