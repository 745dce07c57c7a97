package image

import (
	"strings"
	"testing"

	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

// An image that promises faster-whisper to the model hears with it. What it
// hears is spoken by ffmpeg's flite, a voice that small models understand.
func TestWhisper(t *testing.T) {
	if !strings.Contains(served(t).Environment, "faster-whisper") {
		t.Skip("the image was built with WITH_WHISPER=0 and promises no faster-whisper")
	}
	r := harness.Runner(t, options(t))
	program{of: "faster-whisper", language: sandbox.Python, stdout: "en True\n", code: `
import subprocess
from faster_whisper import WhisperModel
subprocess.run(["ffmpeg", "-v", "error", "-f", "lavfi", "-i", "flite=text='Good morning. The weather is very nice today.'", "-ar", "16000", "a.wav"], check=True)
model = WhisperModel("base", device="cpu", compute_type="int8")
segments, info = model.transcribe("a.wav", vad_filter=True)
print(info.language, "weather" in "".join(s.text for s in segments).lower())`}.run(t, r)
}
