"""`make bench`: every benchmark, and last one line of JSON with all their figures."""

import json

import decode
import predict

if __name__ == "__main__":
    print("==> logits to profile, against the usual way", flush=True)
    first = predict.run()
    print("==> whole decoding, against a straightforward decoder", flush=True)
    print(json.dumps({"predict": first, "decode": decode.run()}))
